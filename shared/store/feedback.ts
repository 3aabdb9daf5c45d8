import { and, eq, max, sql } from "drizzle-orm";
import { batchEntries, batches, calls } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { recordReward, type NewReward } from "./rewards.ts";
import { readRollout, type AttemptRef, type Rollout } from "./rollouts.ts";
import type { Statement, Transaction } from "./statement.ts";

/** Feedback: rewards that people give after the fact, and what they make of a rollout's own reward. */

export interface FeedbackTarget {
  readonly rollout: Rollout;
  /** When anything last happened in it, milliseconds since the epoch. */
  readonly lastAt: number;
  /** Whether a batch has claimed it, trained or not. */
  readonly inBatch: boolean;
}

/** The rollout that feedback is about; undefined where the tenant has none of that id. */
export async function readFeedbackTarget(
  db: StoreDb,
  tenantId: string,
  rolloutId: string,
): Promise<FeedbackTarget | undefined> {
  const [rollout, [last], [entry]] = await Promise.all([
    readRollout(db, tenantId, rolloutId),
    db
      .select({ at: max(calls.createdAt) })
      .from(calls)
      .where(and(sql`+${calls.tenantId} = ${tenantId}`, eq(calls.rolloutId, rolloutId), sql`${calls.role} <> 'judge'`)),
    db
      .select({ status: batches.status })
      .from(batchEntries)
      .innerJoin(batches, eq(batches.id, batchEntries.batchId))
      .where(and(eq(batchEntries.tenantId, tenantId), eq(batchEntries.rolloutId, rolloutId)))
      .limit(1),
  ]);
  if (rollout === undefined) return undefined;
  const lastAt = Math.max(last?.at ?? 0, rollout.finishedAt ?? 0, rollout.startedAt ?? 0, rollout.createdAt);
  return { rollout, lastAt, inBatch: entry !== undefined && entry.status !== "abandoned" };
}

/** The rollout and attempt of a call. */
export async function readRolloutOfCall(
  db: StoreDb,
  tenantId: string,
  callId: string,
): Promise<{ readonly rolloutId: string; readonly attempt: number } | undefined> {
  return (
    await db
      .select({ rolloutId: calls.rolloutId, attempt: calls.attempt })
      .from(calls)
      .where(and(eq(calls.id, callId), sql`+${calls.tenantId} = ${tenantId}`))
      .limit(1)
  )[0];
}

/**
 * Keeps feedback, and makes its mean the reward of a finished rollout that nobody judged and no batch has taken; one that
 * was dropped for want of a reward is then free again, while its run goes on. Reads to the id of what is kept under the key.
 */
export function giveFeedback(reward: NewReward, ref: AttemptRef): Transaction<string> {
  const { statements, read } = recordReward(reward);
  // Before the last statement, whose row is read.
  return { statements: [...statements.slice(0, -1), meanFeedback(ref), ...statements.slice(-1)], read };
}

function meanFeedback({ tenantId, rolloutId, attempt }: AttemptRef): Statement {
  return {
    sql: `update rollouts as r
          set reward = (select avg(w.value) from rewards w
                where w.rollout_id = r.id and w.attempt = r.attempt and w.source = 'feedback'),
            disposition = case when ${REOPENS} then null else disposition end,
            drop_reason = case when ${REOPENS} then null else drop_reason end
          where r.id = ? and +r.tenant_id = ? and r.attempt = ? and r.status = 'finished' and r.outcome is null
            and r.disposition is not 'trained' and r.drop_reason is not 'deleted'
            and not exists (select 1 from batch_entries e where e.rollout_id = r.id)`,
    args: [rolloutId, tenantId, attempt],
  };
}

/**
 * Of a rollout `r` that gets a reward late: it was dropped for want of one, and its run, if it has one, still trains. Any
 * other has been disposed of for good.
 */
export const REOPENS = `r.drop_reason = 'no_reward' and (r.run_id is null
  or exists (select 1 from runs u where u.id = r.run_id and u.finished_at is null))`;
