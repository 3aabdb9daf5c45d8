import { sql } from "drizzle-orm";
import type { StoreDb } from "./connect.ts";
import type { Statement } from "./statement.ts";

/**
 * Live rollouts as training data. Nobody made them in groups, so a claim makes them into groups: each so many of one agent's,
 * in the order in which they began. What they earned is compared within such a window, whose rollouts are of different
 * tasks; the comparison is noisier than one of the same task, and as fair.
 */

export interface LiveGroups {
  readonly agent: string;
  /** Rollouts of a group, 1 or more; only whole groups are claimed, the others wait for more to come. */
  readonly groupSize: number;
  /** Rollouts that began then or later, milliseconds since the epoch. */
  readonly since: number;
  /** Versions of the claim's policy that are not too old to learn from. */
  readonly versions: readonly number[];
}

/** The part of a claim that this needs. */
interface LiveClaim {
  readonly tenantId: string;
  readonly batchId: string;
  readonly runId: string;
  readonly policy: string;
  readonly step: number;
  readonly groups: number;
}

/**
 * Puts up to `groups` groups of the agent's live rollouts into a claimed batch, oldest first, and makes them the run's.
 *
 * Taken are those that finished with a reward (a judge's, or feedback), are free, and have a call that can be trained on;
 * every such call was answered by the policy in one of the versions. A session outside the sample or without consent, a
 * redacted call and a deleted subject have nothing that can be trained on, so they are never taken.
 */
export function claimLiveGroups(claim: LiveClaim, live: LiveGroups): [Statement, Statement] {
  const { tenantId, batchId, runId, step, groups } = claim;
  const { groupSize } = live;
  return [
    {
      sql: `insert into batch_entries (rollout_id, batch_id, tenant_id)
            select id, ?, ? from (
              select r.id, row_number() over (order by r.created_at, r.id) as place, count(*) over () as free
              from rollouts r indexed by rollouts_live_free where ${FREE})
            where place <= min(free / ?, ?) * ?
              and exists (select 1 from batches b
                where b.id = ? and b.tenant_id = ? and b.run_id = ? and b.step = ? and b.status = 'claimed')
            on conflict do nothing`,
      args: [
        ...[batchId, tenantId, ...freeArgs(claim, live)],
        ...[groupSize, groups, groupSize, batchId, tenantId, runId, step],
      ],
    },
    {
      // Named after the first rollout of each: a claim that is repeated, or made larger, never takes a name twice.
      sql: `update rollouts as r set run_id = ?, group_id = live_group
            from (select id as live_id, 'gr_live_' || first_value(id) over (partition by nth order by place) as live_group
              from (select e.rollout_id as id, row_number() over (order by m.created_at, m.id) as place,
                  (row_number() over (order by m.created_at, m.id) - 1) / ? as nth
                from batch_entries e join rollouts m on m.id = e.rollout_id
                where e.batch_id = ? and e.tenant_id = ? and m.group_id is null))
            where r.id = live_id`,
      args: [runId, groupSize, batchId, tenantId],
    },
  ];
}

/** How many live rollouts a claim could take now, whole groups or not. */
export async function countFreeLive(
  db: StoreDb,
  of: Pick<LiveClaim, "tenantId" | "policy">,
  live: Omit<LiveGroups, "groupSize">,
): Promise<number> {
  const [before = "", ...rest] = FREE.split("?");
  const args = freeArgs(of, live);
  const where = rest.reduce((built, text, at) => sql`${built}${args[at]}${sql.raw(text)}`, sql.raw(before));
  const rows = await db.all<{ n: number }>(
    sql`select count(*) as n from rollouts r indexed by rollouts_live_free where ${where}`,
  );
  return rows[0]?.n ?? 0;
}

/**
 * What a rollout `r` must be to be claimed. Its first two lines are those of the index `rollouts_live_free`, word for word, or
 * SQLite would not take it: it has the rollouts that may still be claimed, and none of the many that are over.
 */
const FREE = `r.mode = 'live' and r.status = 'finished' and r.reward is not null and r.disposition is null
  and r.run_id is null and r.tenant_id = ? and r.agent = ? and r.created_at >= ?
  and not exists (select 1 from batch_entries e where e.rollout_id = r.id)
  and (select min(coalesce(c.policy = ? and c.policy_version in (select value from json_each(?)), 0))
    from calls c
    where c.rollout_id = r.id and c.attempt = r.attempt and c.role <> 'judge' and c.trainable) = 1`;

function freeArgs(
  { tenantId, policy }: Pick<LiveClaim, "tenantId" | "policy">,
  { since, agent, versions }: Omit<LiveGroups, "groupSize">,
): (string | number)[] {
  return [tenantId, agent, since, policy, JSON.stringify(versions)];
}
