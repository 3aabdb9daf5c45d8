import { and, asc, eq, sql } from "drizzle-orm";
import { batchEntries, batches, rollouts, tenants } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import type { Statement } from "./statement.ts";

/**
 * Deletion: of one subject's data (what was trained on stays a row, without its content), and of live rollouts that are
 * older than their tenant keeps them (rows and all).
 */

/** What is known of a subject's rollouts before they are deleted. */
export interface SubjectRollout {
  readonly id: string;
  readonly disposition: "trained" | "dropped" | null;
  readonly batch: SubjectBatch | null;
}

export interface SubjectBatch {
  readonly id: string;
  readonly runId: string;
  readonly step: number;
  readonly status: "claimed" | "trained" | "abandoned";
  readonly policy: string;
  readonly version: number | null;
}

/** All of a subject's rollouts with the batches that claimed them, oldest first. */
export async function readSubject(db: StoreDb, tenantId: string, subjectId: string): Promise<SubjectRollout[]> {
  const rows = await db
    .select({
      id: rollouts.id,
      disposition: rollouts.disposition,
      batchId: batches.id,
      runId: batches.runId,
      step: batches.step,
      status: batches.status,
      policy: batches.policy,
      version: batches.version,
    })
    .from(rollouts)
    .leftJoin(batchEntries, eq(batchEntries.rolloutId, rollouts.id))
    .leftJoin(batches, eq(batches.id, batchEntries.batchId))
    .where(and(eq(rollouts.tenantId, tenantId), eq(rollouts.subjectId, subjectId)))
    // The `+` keeps SQLite from walking all of the tenant in this order.
    .orderBy(sql`+${rollouts.createdAt}`, asc(rollouts.id));
  return rows.map(({ id, disposition, batchId, runId, step, status, policy, version }) => ({
    id,
    disposition,
    batch:
      batchId === null || runId === null || step === null || status === null || policy === null
        ? null
        : { id: batchId, runId, step, status, policy, version },
  }));
}

/**
 * Deletes what some rollouts hold, and takes those without a disposition out of whatever batch has them: dropped, with the
 * reason `deleted`. What was trained on stays `trained`. The rows stay, and the subject's id on them until
 * {@link forgetSubject}, so that a deletion that was interrupted is simply done again.
 */
export function deleteContent(tenantId: string, ids: readonly string[], now: number): Statement[] {
  const list = JSON.stringify(ids);
  return [
    ...deleteRecords(tenantId, list),
    {
      sql: `update attempts set error = null,
              status = case when status = 'running' then 'cancelled' else status end,
              finished_at = coalesce(finished_at, ?)
            where tenant_id = ? and rollout_id in ${LISTED}`,
      args: [now, tenantId, list],
    },
    {
      sql: `update rollouts set result = null, error = null, session_id = null, outcome = null, reward = null,
              lease_until = null, finished_at = coalesce(finished_at, ?),
              status = case when status in ('queued', 'running') then 'cancelled' else status end,
              drop_reason = case when disposition is 'trained' then drop_reason else 'deleted' end,
              disposition = case when disposition is 'trained' then disposition else 'dropped' end
            where +tenant_id = ? and id in ${LISTED}`,
      args: [now, tenantId, list],
    },
  ];
}

/** Takes a subject's id off its rollouts, whose content is gone. */
export function forgetSubject(tenantId: string, subjectId: string): Statement {
  return {
    sql: `update rollouts set subject_id = null
          where tenant_id = ? and subject_id = ? and (drop_reason = 'deleted' or disposition = 'trained')`,
    args: [tenantId, subjectId],
  };
}

export interface Retention {
  readonly tenantId: string;
  readonly days: number;
}

/** The tenants that keep live rollouts for so many days only. */
export async function listRetentions(db: StoreDb): Promise<Retention[]> {
  const rows = await db.select({ tenantId: tenants.id, settings: tenants.settings }).from(tenants);
  return rows.flatMap(({ tenantId, settings: { retention_days: days } }) =>
    days === undefined ? [] : [{ tenantId, days }],
  );
}

/**
 * Ids of a tenant's live rollouts that were made before a time and are over, oldest first; not those that a batch has
 * claimed and may still be reading.
 */
export async function listExpired(
  db: StoreDb,
  tenantId: string,
  { before, limit }: { readonly before: number; readonly limit: number },
): Promise<string[]> {
  const rows = await db
    .select({ id: rollouts.id })
    .from(rollouts)
    .where(
      and(
        eq(rollouts.tenantId, tenantId),
        sql`${rollouts.createdAt} < ${before}`,
        sql`+${rollouts.mode} = 'live'`,
        sql`+${rollouts.status} not in ('queued', 'running')`,
        sql`not exists (select 1 from batch_entries e join batches b on b.id = e.batch_id
          where e.rollout_id = ${rollouts.id} and b.status = 'claimed')`,
      ),
    )
    .orderBy(asc(rollouts.createdAt), asc(rollouts.id))
    .limit(limit);
  return rows.map((row) => row.id);
}

/** Deletes rollouts and all that belongs to them; a batch keeps its entries, which are ids. */
export function deleteRollouts(tenantId: string, ids: readonly string[]): Statement[] {
  const list = JSON.stringify(ids);
  return [
    ...deleteRecords(tenantId, list),
    { sql: `delete from attempts where tenant_id = ? and rollout_id in ${LISTED}`, args: [tenantId, list] },
    { sql: `delete from rollouts where +tenant_id = ? and id in ${LISTED}`, args: [tenantId, list] },
  ];
}

// ------------------------------------------------------------------------------------------------------------------

const LISTED = "(select value from json_each(?))";

/** What is recorded of rollouts. The `+` keeps SQLite from the indexes that begin with the tenant. */
function deleteRecords(tenantId: string, list: string): Statement[] {
  return ["calls", "spans", "rewards", "reward_revisions"].map((table) => ({
    sql: `delete from ${table} where +tenant_id = ? and rollout_id in ${LISTED}`,
    args: [tenantId, list],
  }));
}
