import { and, asc, eq, gte, inArray, sql, type SQL } from "drizzle-orm";
import {
  batchEntries,
  batches,
  calls,
  rewardRevisions,
  rewards,
  rollouts,
  type Json,
  type Outcome,
} from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { REOPENS } from "./feedback.ts";
import type { NewReward, Reward } from "./rewards.ts";
import type { AttemptRef, Rollout } from "./rollouts.ts";
import type { Statement, Value } from "./statement.ts";

/** Rewards computed anew over stored rollouts: what they were stays in `reward_revisions`. */

export type RewardRevision = typeof rewardRevisions.$inferSelect;

export interface RecomputableQuery {
  readonly limit: number;
  readonly runId?: string | undefined;
  readonly rolloutIds?: readonly string[] | undefined;
  readonly agent?: string | undefined;
  /** Created then or later, milliseconds since the epoch. */
  readonly since?: number | undefined;
  readonly after?: PagePlace | undefined;
}

/** Where a page ended: the place of its last rollout. */
export interface PagePlace {
  readonly createdAt: number;
  readonly id: string;
}

export interface Recomputable {
  readonly rollout: Rollout;
  /** Whether a batch has it: claimed, or trained on. */
  readonly batch: "none" | "claimed" | "trained";
}

/** Finished rollouts whose content is there, oldest first, a page at a time. */
export async function listRecomputable(
  db: StoreDb,
  tenantId: string,
  options: RecomputableQuery,
): Promise<Recomputable[]> {
  const { limit, runId, rolloutIds, agent, since, after } = options;
  const byId = rolloutIds !== undefined;
  const wanted: SQL[] = [
    // The `+` keeps SQLite from walking all of the tenant where ids or a run lead there directly.
    byId || runId !== undefined ? sql`+${rollouts.tenantId} = ${tenantId}` : eq(rollouts.tenantId, tenantId),
    sql`+${rollouts.status} = 'finished'`,
    sql`${rollouts.dropReason} is not 'deleted'`,
  ];
  if (byId) wanted.push(sql`${rollouts.id} in (select value from json_each(${JSON.stringify(rolloutIds)}))`);
  if (runId !== undefined) wanted.push(eq(rollouts.runId, runId));
  if (agent !== undefined) wanted.push(sql`+${rollouts.agent} = ${agent}`);
  if (since !== undefined) wanted.push(gte(rollouts.createdAt, since));
  if (after !== undefined) {
    wanted.push(sql`(${rollouts.createdAt}, ${rollouts.id}) > (${after.createdAt}, ${after.id})`);
  }
  const rows = await db
    .select({ rollout: rollouts, batchStatus: batches.status })
    .from(rollouts)
    .leftJoin(batchEntries, eq(batchEntries.rolloutId, rollouts.id))
    .leftJoin(batches, eq(batches.id, batchEntries.batchId))
    .where(and(...wanted))
    .orderBy(asc(rollouts.createdAt), asc(rollouts.id))
    .limit(limit);
  return rows.map(({ rollout, batchStatus }) => ({
    rollout,
    batch: rollout.disposition === "trained" ? "trained" : batchStatus === "claimed" ? "claimed" : "none",
  }));
}

/** The rewards of some rollouts that a recomputation replaces, with what it needs to know of them, oldest first. */
export async function readReplaceable(db: StoreDb, tenantId: string, rolloutIds: readonly string[]): Promise<Reward[]> {
  return db
    .select()
    .from(rewards)
    .where(
      and(
        sql`+${rewards.tenantId} = ${tenantId}`,
        sql`${rewards.rolloutId} in (select value from json_each(${JSON.stringify(rolloutIds)}))`,
        inArray(rewards.source, ["air", "terminal", "explicit"]),
      ),
    )
    .orderBy(asc(rewards.createdAt), asc(rewards.id));
}

/** What one call's request and answer show of tools. */
export interface ToolTraffic {
  readonly dialect: string;
  /** As recorded; of a chat request only the messages that call tools or answer them. */
  readonly request: Json;
  readonly response: Json | null;
}

/** Tool calls and results as an attempt's calls show them, oldest first, without the rest of their prompts. */
export async function readToolTraffic(db: StoreDb, ref: AttemptRef): Promise<ToolTraffic[]> {
  const rows = await db
    .select({
      dialect: calls.dialect,
      request: sql<string>`case when ${calls.dialect} in ('responses', 'messages') then ${calls.request} else
        json_object('messages', (select json_group_array(json(json_each.value)) from json_each(${calls.request}, '$.messages')
          where case when json_each.type = 'object' then json_extract(json_each.value, '$.role') = 'tool'
            or json_extract(json_each.value, '$.tool_calls') is not null else 0 end)) end`,
      response: calls.response,
    })
    .from(calls)
    .where(
      and(
        sql`+${calls.tenantId} = ${ref.tenantId}`,
        eq(calls.rolloutId, ref.rolloutId),
        eq(calls.attempt, ref.attempt),
      ),
    )
    .orderBy(asc(calls.createdAt), asc(calls.id));
  return rows.map((row) => ({ ...row, request: JSON.parse(row.request) as Json }));
}

export interface Replacement extends AttemptRef {
  /** The rollout's reward as it was read: where it has changed since, nothing is replaced. */
  readonly was: number | null;
  readonly reward: number | null;
  readonly outcome: Outcome | null;
  /** In place of the attempt's `air` and `terminal` rewards. */
  readonly rewards: readonly NewReward[];
  /** Also of a rollout that was trained on; it stays trained. */
  readonly trained: "left alone" | "included";
}

/**
 * Replaces a finished rollout's rewards and keeps the old ones as its next revision; all of its statements do nothing
 * where the rollout is no longer as it was read. The last one's rows name the rollout where it was changed. A rollout that
 * was dropped for want of a reward and has one now is free again, while its run goes on.
 */
export function replaceRewards(replacement: Replacement, now: number): Statement[] {
  const { tenantId, rolloutId, attempt, was, reward, outcome, trained } = replacement;
  const same = `r.id = ? and +r.tenant_id = ? and r.attempt = ? and r.status = 'finished' and r.reward is ?
    and r.drop_reason is not 'deleted'${trained === "included" ? "" : " and r.disposition is not 'trained'"}
    and not exists (select 1 from batch_entries e join batches b on b.id = e.batch_id
      where e.rollout_id = r.id and b.status = 'claimed')`;
  const bound: Value[] = [rolloutId, tenantId, attempt, was];
  return [
    {
      sql: `insert into reward_revisions (rollout_id, revision, tenant_id, reward, outcome, rewards, replaced_at)
            select r.id, (select coalesce(max(v.revision), 0) + 1 from reward_revisions v where v.rollout_id = r.id),
              r.tenant_id, r.reward, r.outcome,
              (select json_group_array(json_object('id', w.id, 'key', w.key, 'attempt', w.attempt, 'source', w.source,
                  'name', w.name, 'value', w.value, 'detail', json(w.detail), 'created_at', w.created_at))
                from rewards w where w.rollout_id = r.id and w.attempt = r.attempt and w.source in ('air', 'terminal')), ?
            from rollouts r where ${same}`,
      args: [now, ...bound],
    },
    {
      sql: `delete from rewards where rollout_id = ? and attempt = ? and source in ('air', 'terminal')
              and exists (select 1 from rollouts r where ${same})`,
      args: [rolloutId, attempt, ...bound],
    },
    {
      sql: `insert into rewards (id, tenant_id, key, rollout_id, attempt, source, name, value, detail, created_at)
            select json_each.value ->> 'id', r.tenant_id, json_each.value ->> 'key', r.id, r.attempt, json_each.value ->> 'source',
              json_each.value ->> 'name', json_each.value ->> 'value', json_each.value -> 'detail', json_each.value ->> 'createdAt'
            from rollouts r, json_each(?) where ${same} on conflict do nothing`,
      args: [JSON.stringify(replacement.rewards), ...bound],
    },
    {
      sql: `update rollouts as r set reward = ?, outcome = ?, error = null,
              disposition = case when ?1 is not null and ${REOPENS} then null else disposition end,
              drop_reason = case when ?1 is not null and ${REOPENS} then null else drop_reason end
            where ${same} returning id`,
      args: [reward, outcome === null ? null : JSON.stringify(outcome), ...bound],
    },
  ];
}

/** What a rollout's rewards were, oldest first. */
export async function readRevisions(db: StoreDb, tenantId: string, rolloutId: string): Promise<RewardRevision[]> {
  return db
    .select()
    .from(rewardRevisions)
    .where(and(eq(rewardRevisions.rolloutId, rolloutId), sql`+${rewardRevisions.tenantId} = ${tenantId}`))
    .orderBy(asc(rewardRevisions.revision));
}
