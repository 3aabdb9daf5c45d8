import { and, asc, eq, inArray, max, sql } from "drizzle-orm";
import type { Json } from "#shared/tables.ts";
import { closeShadow, endShadow } from "./agl-shadow.ts";
import { aglEvents, aglRollouts, aglTerminals, type AglConfig, type AglState } from "./agl-tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto, rowFrom } from "./rows.ts";
import type { Statement, Transaction, Value } from "./statement.ts";

/** Agent Lightning's rollouts: its trainer makes them, its controller moves them on, and both read how they ended. */

export type AglRollout = typeof aglRollouts.$inferSelect;

/** Legal changes of state; ended is ended. */
export const AGL_TRANSITIONS: Readonly<Record<AglState, readonly AglState[]>> = {
  queuing: ["running", "failed"],
  running: ["succeeded", "failed"],
  succeeded: [],
  failed: [],
};

export interface NewAglRollout {
  readonly id: string;
  readonly shadowId: string;
  readonly input: Json;
  readonly isTrain: boolean;
  readonly config: AglConfig;
  readonly metadata: Readonly<Record<string, Json>>;
  readonly dataId: string;
}

const insertRollout = insertInto(aglRollouts);

/** New rollouts, queuing, in this order; an id that exists already keeps its rollout as it is. */
export function createAglRollouts(tenantId: string, rows: readonly NewAglRollout[], now: number): Statement[] {
  return rows.map((row) =>
    insertRollout({ ...row, tenantId, state: "queuing", version: 1, createdAt: now, updatedAt: now }),
  );
}

/** As {@link createAglRollouts}; reads to the rollouts under these ids, in no order. */
export function enqueueAglRollouts(
  tenantId: string,
  rows: readonly NewAglRollout[],
  now: number,
): Transaction<AglRollout[]> {
  return {
    statements: [
      ...createAglRollouts(tenantId, rows, now),
      {
        sql: "select * from agl_rollouts where tenant_id = ? and id in (select value from json_each(?))",
        args: [tenantId, JSON.stringify(rows.map(({ id }) => id))],
      },
    ],
    read: (results) => (results.at(-1) ?? []).map((row) => rowFrom(aglRollouts, row)),
  };
}

/** What of a status is to change; what is absent stays. */
export interface AglStatusChange {
  readonly state?: AglState;
  readonly k8sJobName?: string | null;
  readonly lastAttemptId?: string | null;
  readonly errorMessage?: string | null;
}

export type AglChange =
  | { readonly status: "changed"; readonly rollout: AglRollout }
  /** The state that it has does not lead to the one that was asked for. */
  | { readonly status: "refused"; readonly rollout: AglRollout }
  | { readonly status: "missing" };

const COLUMNS = { state: "state", k8sJobName: "k8s_job_name", lastAttemptId: "last_attempt_id" } as const;

/**
 * Changes a rollout's status, all of it or nothing. One that ends takes the next place in the order of ended rollouts, and
 * its shadow ends with it: with the newest reward that was posted, dropped where it failed or was a validation.
 */
export function changeAglStatus(
  tenantId: string,
  id: string,
  change: AglStatusChange,
  now: number,
): Transaction<AglChange> {
  const set: string[] = [];
  const args: Value[] = [];
  for (const [key, column] of Object.entries({ ...COLUMNS, errorMessage: "error_message" })) {
    const value = change[key as keyof AglStatusChange];
    if (value === undefined) continue;
    set.push(`${column} = ?`);
    args.push(value);
  }
  const { state } = change;
  const from = state === undefined ? undefined : sources(state);
  const ends = state === "succeeded" || state === "failed";
  return {
    statements: [
      {
        sql: `update agl_rollouts set ${[...set, "version = version + 1", "updated_at = ?"].join(", ")}
              where tenant_id = ? and id = ?${from === undefined ? "" : " and state in (select value from json_each(?))"}
              returning seq`,
        args: [...args, now, tenantId, id, ...(from === undefined ? [] : [JSON.stringify(from)])],
      },
      ...(ends ? [takePlace(tenantId, id), ...endShadow(tenantId, id, now)] : []),
      { sql: "select * from agl_rollouts where tenant_id = ? and id = ?", args: [tenantId, id] },
    ],
    read: (results) => {
      const row = results.at(-1)?.[0];
      if (row === undefined) return { status: "missing" };
      const rollout = rowFrom(aglRollouts, row);
      return { status: results[0]?.[0] === undefined ? "refused" : "changed", rollout };
    },
  };
}

function sources(state: AglState): AglState[] {
  return (Object.keys(AGL_TRANSITIONS) as AglState[]).filter((from) => AGL_TRANSITIONS[from].includes(state));
}

const ENDED = "state in ('succeeded', 'failed')";

function takePlace(tenantId: string, id: string): Statement {
  return {
    sql: `insert into agl_terminals (tenant_id, position, rollout_seq)
          select tenant_id, (select coalesce(max(position), 0) + 1 from agl_terminals where tenant_id = ?), seq
          from agl_rollouts where tenant_id = ? and id = ? and ${ENDED} on conflict do nothing`,
    args: [tenantId, tenantId, id],
  };
}

/**
 * Deletes a rollout with its events; again is nothing. Its shadow stays, with the calls and rewards that were recorded,
 * and is dropped as `deleted` unless it has a disposition.
 */
export function deleteAglRollout(tenantId: string, id: string, now: number): Statement[] {
  const args = [tenantId, id];
  const own = "rollout_seq in (select seq from agl_rollouts where tenant_id = ? and id = ?)";
  return [
    { sql: `delete from agl_events where ${own}`, args },
    { sql: `delete from agl_attempts where ${own}`, args },
    ...closeShadow(tenantId, id, now),
    { sql: "delete from agl_rollouts where tenant_id = ? and id = ?", args },
  ];
}

// Reads -------------------------------------------------------------------------------------------------------------

export async function readAglRollout(db: StoreDb, tenantId: string, id: string): Promise<AglRollout | undefined> {
  return (
    await db
      .select()
      .from(aglRollouts)
      .where(and(eq(aglRollouts.tenantId, tenantId), eq(aglRollouts.id, id)))
      .limit(1)
  )[0];
}

export async function readAglRollouts(db: StoreDb, tenantId: string, ids: readonly string[]): Promise<AglRollout[]> {
  if (ids.length === 0) return [];
  return db
    .select()
    .from(aglRollouts)
    .where(
      and(
        eq(aglRollouts.tenantId, tenantId),
        sql`${aglRollouts.id} in (select value from json_each(${JSON.stringify(ids)}))`,
      ),
    );
}

/** Rollouts in any of these states, oldest first. */
export async function listAglRollouts(
  db: StoreDb,
  tenantId: string,
  options: { readonly states: readonly AglState[]; readonly limit: number },
): Promise<AglRollout[]> {
  if (options.limit <= 0) return [];
  return db
    .select()
    .from(aglRollouts)
    .where(and(eq(aglRollouts.tenantId, tenantId), inArray(aglRollouts.state, [...options.states])))
    .orderBy(asc(aglRollouts.seq))
    .limit(options.limit);
}

export interface EndedAglRollout {
  readonly id: string;
  readonly state: AglState;
  readonly dataId: string;
  readonly isTrain: boolean;
}

export interface EndedPage {
  readonly items: readonly EndedAglRollout[];
  /** The cursor of the next page; moves past deleted rollouts too. */
  readonly nextAfter: number;
  /** How many have ended so far, deleted ones included. */
  readonly total: number;
}

/** Ended rollouts in the order in which they ended, without those that were deleted. @param after how many to skip */
export async function listEndedAglRollouts(
  db: StoreDb,
  tenantId: string,
  { after, limit }: { readonly after: number; readonly limit: number },
): Promise<EndedPage> {
  const rows = await db
    .select({
      position: aglTerminals.position,
      id: aglRollouts.id,
      state: aglRollouts.state,
      dataId: aglRollouts.dataId,
      isTrain: aglRollouts.isTrain,
    })
    .from(aglTerminals)
    .leftJoin(aglRollouts, eq(aglRollouts.seq, aglTerminals.rolloutSeq))
    .where(
      and(
        eq(aglTerminals.tenantId, tenantId),
        sql`${aglTerminals.position} > ${after} and ${aglTerminals.position} <= ${after + limit}`,
      ),
    )
    .orderBy(asc(aglTerminals.position));
  // Counted afterwards: never fewer than the page shows.
  const [counted] = await db
    .select({ total: max(aglTerminals.position) })
    .from(aglTerminals)
    .where(eq(aglTerminals.tenantId, tenantId));
  const items = rows.flatMap(({ id, state, dataId, isTrain }) =>
    id === null || state === null || dataId === null || isTrain === null ? [] : [{ id, state, dataId, isTrain }],
  );
  return { items, nextAfter: rows.at(-1)?.position ?? after, total: counted?.total ?? 0 };
}

/** The attempts that events were posted or recorded for, by their first event. */
export async function listAglAttempts(db: StoreDb, rollout: Pick<AglRollout, "seq">): Promise<string[]> {
  const rows = await db
    .select({ id: aglEvents.attemptId, first: sql<string>`min(${aglEvents.id})` })
    .from(aglEvents)
    .where(eq(aglEvents.rolloutSeq, rollout.seq))
    .groupBy(aglEvents.attemptId)
    .orderBy(sql`min(${aglEvents.id})`);
  return rows.map(({ id }) => id);
}
