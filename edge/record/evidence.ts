import { and, asc, eq, inArray, ne, sql } from "drizzle-orm";
import type { StoreDb } from "#shared/store/connect.ts";
import type { Rollout } from "#shared/store/rollouts.ts";
import { calls, rewards, rollouts, tasks, type Json, type Judge } from "#shared/tables.ts";
import { JUDGE_ROLE, type RewardSource } from "#shared/words.ts";

/** What the store knows of a rollout's newest attempt when it ends. */
export interface Evidence {
  readonly rollout: Rollout;
  /** Null where the rollout has no task, or the task no judge. */
  readonly judge: Judge | null;
  /** Rewards `air`, `explicit` and `feedback` of this attempt, oldest first. */
  readonly rewards: readonly SeenReward[];
  /** The agent's own calls of this attempt, oldest first; not those of its judge. */
  readonly calls: readonly SeenCall[];
}

export interface SeenReward {
  readonly source: RewardSource;
  readonly name: string;
  readonly value: number;
  readonly callId: string | null;
}

export interface SeenCall {
  readonly trainable: boolean;
  /** The assistant's message. */
  readonly response: Json | null;
}

/**
 * Reads the evidence of some rollouts in one round trip, without prompts and token ids: those are most of a call.
 * @returns by rollout id; an id that the tenant does not have is absent
 */
export async function readEvidence(
  db: StoreDb,
  tenantId: string,
  rolloutIds: readonly string[],
): Promise<Map<string, Evidence>> {
  if (rolloutIds.length === 0) return new Map();
  const wanted = sql`(select value from json_each(${JSON.stringify(rolloutIds)}))`;
  const [rolloutRows, rewardRows, callRows] = await db.batch([
    db
      .select({ rollout: rollouts, judge: tasks.judge })
      .from(rollouts)
      .leftJoin(tasks, and(eq(tasks.tenantId, rollouts.tenantId), eq(tasks.id, rollouts.taskId)))
      .where(and(eq(rollouts.tenantId, tenantId), sql`${rollouts.id} in ${wanted}`)),
    db
      .select({
        rolloutId: rewards.rolloutId,
        attempt: rewards.attempt,
        source: rewards.source,
        name: rewards.name,
        value: rewards.value,
        callId: rewards.callId,
      })
      .from(rewards)
      .where(
        and(
          eq(rewards.tenantId, tenantId),
          sql`${rewards.rolloutId} in ${wanted}`,
          inArray(rewards.source, ["air", "explicit", "feedback"]),
        ),
      )
      .orderBy(asc(rewards.createdAt), asc(rewards.id)),
    db
      .select({
        rolloutId: calls.rolloutId,
        attempt: calls.attempt,
        trainable: calls.trainable,
        response: calls.response,
      })
      .from(calls)
      .where(and(eq(calls.tenantId, tenantId), sql`${calls.rolloutId} in ${wanted}`, ne(calls.role, JUDGE_ROLE)))
      .orderBy(asc(calls.createdAt), asc(calls.id)),
  ]);
  return new Map(
    rolloutRows.map(({ rollout, judge }) => {
      const isOfAttempt = (row: { rolloutId: string; attempt: number }): boolean =>
        row.rolloutId === rollout.id && row.attempt === rollout.attempt;
      return [
        rollout.id,
        { rollout, judge, rewards: rewardRows.filter(isOfAttempt), calls: callRows.filter(isOfAttempt) },
      ];
    }),
  );
}
