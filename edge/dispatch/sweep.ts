import { and, eq, isNotNull, min, sql } from "drizzle-orm";
import type { StoreDb } from "#shared/store/connect.ts";
import {
  extendLease,
  listIdleSessions,
  requeueRollout,
  sweepExpired,
  type AttemptRef,
  type IdleSession,
} from "#shared/store/rollouts.ts";
import { transact, type Statement, type StoreWriter } from "#shared/store/statement.ts";
import { rollouts } from "#shared/tables.ts";

/** How long a lease lasts; the dispatcher extends those of its running attempts several times in that time. */
export const LEASE_MS = 60_000;

/** Sessions that one sweep settles; the others wait for the next. */
const IDLE_A_SWEEP = 200;

export interface SweepDeps {
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact">;
  readonly now: () => number;
}

export interface Swept {
  /** Rollout ids whose lease had run out: queued again or failed. */
  readonly expired: readonly string[];
  /** Of the attempts that were given, those that the store no longer knows as running: cancelled, for example. */
  readonly lost: readonly AttemptRef[];
  /** Live sessions that are over, to be settled with the text of their last answer. */
  readonly idle: readonly IdleSession[];
  /** When the earliest queued rollout may be leased (milliseconds since the epoch); undefined where none is queued. */
  readonly nextDue: number | undefined;
}

/**
 * Extends the leases of the attempts that run here, then ends those that nobody extends any more.
 * @throws FulgurError ERR_STORE while the store is away: nothing was changed, and it may be repeated
 */
export async function sweep({ db, writer, now }: SweepDeps, running: readonly AttemptRef[]): Promise<Swept> {
  const at = now();
  const extensions = running.flatMap((ref) => extendLease(ref, at + LEASE_MS));
  const expiry = sweepExpired(at);
  // In one transaction and in this order: a lease that ran out while the store was away is not lost.
  const expired = await transact(writer, {
    statements: [...extensions, ...expiry.statements],
    read: (rows) => expiry.read(rows.slice(extensions.length)),
  });
  const ids = JSON.stringify(running.map((ref) => ref.rolloutId));
  const [alive, [queued]] = await db.batch([
    db
      .select({ rolloutId: rollouts.id, attempt: rollouts.attempt })
      .from(rollouts)
      .where(and(sql`${rollouts.id} in (select value from json_each(${ids}))`, eq(rollouts.status, "running"))),
    db
      .select({ nextDue: min(rollouts.notBefore) })
      .from(rollouts)
      .where(eq(rollouts.status, "queued")),
  ]);
  const aliveAttempts = new Map(alive.map((row) => [row.rolloutId, row.attempt]));
  return {
    idle: await listIdleSessions(db, at, IDLE_A_SWEEP),
    expired: expired.map((row) => row.id),
    lost: running.filter((ref) => aliveAttempts.get(ref.rolloutId) !== ref.attempt),
    nextDue: queued?.nextDue ?? undefined,
  };
}

/**
 * Queues again what runs according to the store and is not in hand: there is one dispatcher, so nobody else waits for
 * those agents. Rollouts that their agents started by themselves are left alone.
 * @param held attempts that the dispatcher knows of
 * @returns how many there were
 */
export async function recover({ db, writer, now }: SweepDeps, held: readonly AttemptRef[]): Promise<number> {
  const running = await db
    .select({ tenantId: rollouts.tenantId, rolloutId: rollouts.id, attempt: rollouts.attempt })
    .from(rollouts)
    .where(and(eq(rollouts.status, "running"), isNotNull(rollouts.taskId)));
  const heldAttempts = new Map(held.map((ref) => [ref.rolloutId, ref.attempt]));
  const orphans = running.filter((ref) => heldAttempts.get(ref.rolloutId) !== ref.attempt);
  const at = now();
  const statements: Statement[] = orphans.flatMap((ref) =>
    requeueRollout(ref, {
      now: at,
      notBefore: at,
      error: "the dispatcher lost the attempt while it ran",
      dropReason: "agent_failed",
    }),
  );
  if (statements.length > 0) await writer.transact(statements);
  return orphans.length;
}
