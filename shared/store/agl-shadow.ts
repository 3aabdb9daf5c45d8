import type { Statement } from "./statement.ts";

/**
 * The rollout of ours behind one of Agent Lightning's: made with its first call or reward, so that calls, rewards, pages
 * and usage find what they know, and kept when the other is deleted. It starts, waits and is swept by nobody here.
 * All statements do nothing where the rollout does not exist.
 */

/** The agent name that shadows bear. */
export const AGL_AGENT = "agent-lightning";

export interface ShadowAttempt {
  readonly tenantId: string;
  /** Of Agent Lightning's rollout. */
  readonly id: string;
  readonly attemptId: string;
  /** As the rollout was created, where absent. */
  readonly mode?: "train" | "val";
}

/** Opens the shadow and one of its attempts, unless they are there; of a rollout that has ended, ended. */
export function openShadow({ tenantId, id, attemptId, mode }: ShadowAttempt, now: number): Statement[] {
  return [
    {
      sql: `insert into agl_attempts (rollout_seq, attempt_id, tenant_id, number)
            select seq, ?, tenant_id,
              (select coalesce(max(number), 0) + 1 from agl_attempts n where n.rollout_seq = a.seq)
            from agl_rollouts a where tenant_id = ? and id = ? on conflict do nothing`,
      args: [attemptId, tenantId, id],
    },
    {
      sql: `insert into rollouts (id, tenant_id, agent, mode, status, max_attempts, created_at, started_at)
            select shadow_id, tenant_id, ?, coalesce(?, case when is_train then 'train' else 'val' end), 'running', 1, ?, ?
            from agl_rollouts where tenant_id = ? and id = ? on conflict do nothing`,
      args: [AGL_AGENT, mode ?? null, now, now, tenantId, id],
    },
    {
      sql: `insert into attempts (rollout_id, attempt, tenant_id, status, started_at)
            select a.shadow_id, n.number, a.tenant_id, 'running', ? ${ATTEMPT} on conflict do nothing`,
      args: [now, tenantId, id, attemptId],
    },
    {
      sql: `update rollouts as r set attempt = max(r.attempt, (select n.number ${ATTEMPT}))
            where r.id = (select shadow_id from agl_rollouts where tenant_id = ? and id = ?)`,
      args: [tenantId, id, attemptId, tenantId, id],
    },
    ...endShadow(tenantId, id, now),
  ];
}

const ATTEMPT = `from agl_rollouts a join agl_attempts n on n.rollout_seq = a.seq
  where a.tenant_id = ? and a.id = ? and n.attempt_id = ?`;

/** One row, `shadow_id` and `number`: by which calls and rewards know an attempt of {@link openShadow}. */
export function shadowOf({ tenantId, id, attemptId }: ShadowAttempt): Statement {
  return { sql: `select a.shadow_id, n.number ${ATTEMPT}`, args: [tenantId, id, attemptId] };
}

export interface ShadowReward {
  readonly id: string;
  readonly name: string;
  readonly value: number;
}

/** A reward of the shadow's attempt; one that comes after the rollout's end is its reward from then on. */
export function rewardShadow(attempt: ShadowAttempt, reward: ShadowReward, now: number): Statement[] {
  const { tenantId, id, attemptId } = attempt;
  return [
    ...openShadow(attempt, now),
    {
      sql: `insert into rewards (id, tenant_id, key, rollout_id, attempt, source, name, value, created_at)
            select ?, a.tenant_id, ?, a.shadow_id, n.number, 'explicit', ?, ?, ? ${ATTEMPT} on conflict do nothing`,
      args: [reward.id, `agl:${reward.id}`, reward.name, reward.value, now, tenantId, id, attemptId],
    },
    {
      sql: `update rollouts set reward = ? where status in ('finished', 'failed')
              and id = (select shadow_id from agl_rollouts where tenant_id = ? and id = ?)`,
      args: [reward.value, tenantId, id],
    },
  ];
}

/**
 * Ends the shadow of a rollout that has ended, with the newest reward that was posted; where it failed or was a validation
 * it is dropped. Nothing where the rollout has not ended.
 */
export function endShadow(tenantId: string, id: string, now: number): Statement[] {
  return [
    {
      sql: `update rollouts as r set
              status = case a.state when 'succeeded' then 'finished' else 'failed' end,
              error = a.error_message, finished_at = ?,
              reward = (select w.value from rewards w
                where w.rollout_id = r.id and +w.tenant_id = r.tenant_id and w.source = 'explicit'
                order by w.created_at desc, w.id desc limit 1),
              disposition = coalesce(r.disposition,
                case when a.state = 'failed' or r.mode <> 'train' then 'dropped' end),
              drop_reason = coalesce(r.drop_reason,
                case when a.state = 'failed' then 'agent_failed' when r.mode <> 'train' then 'evaluation' end)
            from agl_rollouts a
            where a.tenant_id = ? and a.id = ? and a.state in ('succeeded', 'failed') and r.id = a.shadow_id and r.tenant_id = a.tenant_id
              and r.status = 'running'`,
      args: [now, tenantId, id],
    },
    {
      sql: `update attempts as t set status = r.status, error = r.error, finished_at = ?
            from agl_rollouts a join rollouts r on r.id = a.shadow_id
            where a.tenant_id = ? and a.id = ? and t.rollout_id = r.id and t.status = 'running'
              and r.status in ('finished', 'failed')`,
      args: [now, tenantId, id],
    },
  ];
}

/** Closes the shadow of a rollout that is about to be deleted: `deleted`, unless it has a disposition. */
export function closeShadow(tenantId: string, id: string, now: number): Statement[] {
  const shadow = "(select shadow_id from agl_rollouts where tenant_id = ? and id = ?)";
  return [
    {
      sql: `update attempts set status = 'cancelled', finished_at = ? where rollout_id = ${shadow} and status = 'running'`,
      args: [now, tenantId, id],
    },
    {
      sql: `update rollouts set drop_reason = case when disposition is null then 'deleted' else drop_reason end,
              disposition = coalesce(disposition, 'dropped'), finished_at = coalesce(finished_at, ?),
              status = case when status = 'running' then 'cancelled' else status end
            where id = ${shadow}`,
      args: [now, tenantId, id],
    },
  ];
}
