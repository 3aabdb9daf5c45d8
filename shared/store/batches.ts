import { and, asc, desc, eq, isNull } from "drizzle-orm";
import { FulgurError } from "#shared/errors.ts";
import { batchEntries, batches, rollouts, type policyVersions } from "#shared/tables.ts";
import { versionName, type DropReason } from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import { claimLiveGroups, type LiveGroups } from "./live-groups.ts";
import { insertInto } from "./rows.ts";
import type { Rollout } from "./rollouts.ts";
import { unlessForeign } from "./runs.ts";
import { lastRow, textOf, type Row, type Statement, type Transaction } from "./statement.ts";

/**
 * Batches: which rollouts train into which version. A rollout enters one batch at most, because `batch_entries` has the
 * rollout as its key and a claim is one transaction.
 */

export type Batch = typeof batches.$inferSelect;

export interface Claim {
  readonly tenantId: string;
  readonly batchId: string;
  readonly runId: string;
  readonly policy: string;
  readonly step: number;
  /** At most so many more groups. */
  readonly groups: number;
  /** Takes live traffic in place of the run's own rollouts; a batch may be claimed from both, one after the other. */
  readonly live?: LiveGroups | undefined;
}

/**
 * Claims complete groups of the run's train rollouts, oldest group first: every rollout of the group has ended and at
 * least two of them finished and are free. Claiming again with the same batch id adds groups. An ended group with a
 * single finished rollout can never have a spread; it is dropped as `zero_spread` on the way. With `live`, claims live
 * rollouts as live-groups.ts has it.
 *
 * Reads to the ids of all rollouts that the batch now holds and that are not dropped, so a claim whose answer was lost
 * is seen by the next one. Throws FulgurError ERR_CONFLICT when the step belongs to another batch or the batch is over.
 */
export function claimGroups(claim: Claim, now: number): Transaction<string[]> {
  const { tenantId, batchId, runId, policy, step, live } = claim;
  return {
    statements: [
      unlessForeign(
        insertBatch({ id: batchId, tenantId, runId, policy, step, status: "claimed", createdAt: now }),
        claim,
      ),
      ...(live === undefined ? claimOwnGroups(claim) : claimLiveGroups(claim, live)),
      {
        sql: `select e.rollout_id from batch_entries e join rollouts r on r.id = e.rollout_id
              where e.batch_id = ? and e.tenant_id = ? and r.disposition is null
              order by r.created_at, r.group_id, r.id`,
        args: [batchId, tenantId],
      },
      {
        sql: `select id, status from batches where tenant_id = ? and run_id = ? and step = ?
              order by id = ? desc, status = 'abandoned' limit 1`,
        args: [tenantId, runId, step, batchId],
      },
    ],
    read: (rows) => {
      const batch = lastRow(rows);
      if (batch?.["id"] !== batchId || batch["status"] !== "claimed") {
        throw new FulgurError(
          "ERR_CONFLICT",
          `batch ${batchId} cannot claim step ${step} of run ${runId}: ${batch === undefined ? "its id belongs to another run or step" : `batch ${textOf(batch, "id")} is ${textOf(batch, "status")} there`}; resume that batch, or claim the next step under a new id`,
        );
      }
      return (rows.at(-2) ?? []).map((row) => textOf(row, "rollout_id"));
    },
  };
}

function claimOwnGroups({ tenantId, batchId, runId, step, groups }: Claim): Statement[] {
  return [
    {
      sql: `insert into batch_entries (rollout_id, batch_id, tenant_id)
            select r.id, ?, r.tenant_id from rollouts r
            where +r.tenant_id = ? and r.run_id = ? and ${FREE} and r.group_id in (
              select g.group_id from rollouts g
              where +g.tenant_id = ? and g.run_id = ? and +g.mode = 'train' and g.disposition is null
                and g.group_id is not null
              group by g.group_id
              having ${ENDED} and sum(${FREE.replaceAll("r.", "g.")}) >= 2
              order by min(g.created_at), g.group_id limit ?)
            and exists (select 1 from batches b
              where b.id = ? and b.tenant_id = ? and b.run_id = ? and b.step = ? and b.status = 'claimed')
            on conflict do nothing`,
      args: [batchId, tenantId, runId, tenantId, runId, groups, batchId, tenantId, runId, step],
    },
    {
      sql: `update rollouts as r set disposition = 'dropped', drop_reason = 'zero_spread'
            where +r.tenant_id = ? and r.run_id = ? and ${FREE} and r.group_id in (
              select g.group_id from rollouts g
              where +g.tenant_id = ? and g.run_id = ? and +g.mode = 'train' and g.disposition is null
                and g.group_id is not null
              group by g.group_id having ${ENDED} and count(*) = 1)`,
      args: [tenantId, runId, tenantId, runId],
    },
  ];
}

export interface Trained {
  readonly tenantId: string;
  readonly batchId: string;
  readonly version: number;
  readonly parentVersion: number;
  readonly kind: (typeof policyVersions.$inferInsert)["kind"];
  readonly artifact: string;
  readonly sha256: string;
  readonly metrics: Readonly<Record<string, number>>;
}

/**
 * Batch trained, its undropped rollouts `trained`, the version registered with its lineage and the step's metrics kept,
 * all or nothing. Repeatable.
 * Its read throws FulgurError ERR_NOT_FOUND for an unknown batch, ERR_CONFLICT when the batch is not claimed (abandoned,
 * or trained into another version) or the version exists with another sha256.
 */
export function markTrained(trained: Trained, now: number): Transaction<void> {
  const { tenantId, batchId, version, parentVersion, kind, artifact, sha256, metrics } = trained;
  const open = [batchId, tenantId, version, sha256] as const;
  return {
    statements: [
      {
        sql: `insert into policy_versions (tenant_id, policy, version, parent_version, kind, artifact, sha256, run_id,
                batch_id, step, created_at)
              select b.tenant_id, b.policy, ?, ?, ?, ?, ?, b.run_id, b.id, b.step, ? from batches b where ${OPEN}
              on conflict do nothing`,
        args: [version, parentVersion, kind, artifact, sha256, now, ...open],
      },
      {
        sql: `insert into train_steps (run_id, step, tenant_id, batch_id, policy, version, metrics, created_at)
              select b.run_id, b.step, b.tenant_id, b.id, b.policy, ?, ?, ? from batches b where ${OPEN}
              on conflict do nothing`,
        args: [version, JSON.stringify(metrics), now, ...open],
      },
      {
        sql: `update rollouts set disposition = 'trained'
              where disposition is null and +tenant_id = ?
                and id in (select rollout_id from batch_entries where batch_id = ?)
                and exists (select 1 from batches b where ${OPEN})`,
        args: [tenantId, batchId, ...open],
      },
      {
        sql: `update batches as b set status = 'trained', version = ?, trained_at = ? where ${OPEN}`,
        args: [version, now, ...open],
      },
      {
        sql: `select b.status, b.version, b.policy, v.sha256 from batches b left join policy_versions v
                on v.tenant_id = b.tenant_id and v.policy = b.policy and v.version = ?
              where b.id = ? and b.tenant_id = ?`,
        args: [version, batchId, tenantId],
      },
    ],
    read: (rows) => {
      const batch = lastRow(rows);
      if (batch === undefined) throw unknownBatch(batchId);
      if (batch["status"] === "trained" && batch["version"] === version && batch["sha256"] === sha256) return;
      throw new FulgurError("ERR_CONFLICT", refusal(batch, trained));
    },
  };
}

/**
 * Gives a claimed batch up: its undropped rollouts are dropped with the reason. Repeatable.
 * Its read throws FulgurError ERR_NOT_FOUND for an unknown batch, ERR_CONFLICT for a trained one.
 */
export function abandonBatch(
  tenantId: string,
  batchId: string,
  options: { readonly reason: DropReason },
): Transaction<void> {
  return {
    statements: [
      {
        sql: `update rollouts set disposition = 'dropped', drop_reason = ?
              where disposition is null and +tenant_id = ?
                and id in (select rollout_id from batch_entries where batch_id = ?)
                and exists (select 1 from batches where id = ? and tenant_id = ? and status = 'claimed')`,
        args: [options.reason, tenantId, batchId, batchId, tenantId],
      },
      {
        sql: `update batches set status = 'abandoned' where id = ? and tenant_id = ? and status = 'claimed'`,
        args: [batchId, tenantId],
      },
      { sql: `select status from batches where id = ? and tenant_id = ?`, args: [batchId, tenantId] },
    ],
    read: (rows) => {
      const batch = lastRow(rows);
      if (batch === undefined) throw unknownBatch(batchId);
      if (batch["status"] === "abandoned") return;
      throw new FulgurError(
        "ERR_CONFLICT",
        `batch ${batchId} is ${textOf(batch, "status")}; only a claimed one can be abandoned`,
      );
    },
  };
}

// Reads -----------------------------------------------------------------------------------------------------------

export async function readBatch(db: StoreDb, tenantId: string, id: string): Promise<Batch | undefined> {
  return (
    await db
      .select()
      .from(batches)
      .where(and(eq(batches.tenantId, tenantId), eq(batches.id, id)))
      .limit(1)
  )[0];
}

/** The run's claimed batch, which a trainer that starts again goes on with; the newest, if ever there were two. */
export async function readClaimedBatch(db: StoreDb, tenantId: string, runId: string): Promise<Batch | undefined> {
  return (
    await db
      .select()
      .from(batches)
      .where(and(eq(batches.tenantId, tenantId), eq(batches.runId, runId), eq(batches.status, "claimed")))
      .orderBy(desc(batches.step))
      .limit(1)
  )[0];
}

/** The batch that claimed a rollout, whatever became of it there. */
export async function readBatchOfRollout(db: StoreDb, tenantId: string, rolloutId: string): Promise<Batch | undefined> {
  return (
    await db
      .select({ batch: batches })
      .from(batchEntries)
      .innerJoin(batches, eq(batches.id, batchEntries.batchId))
      .where(and(eq(batchEntries.tenantId, tenantId), eq(batchEntries.rolloutId, rolloutId)))
      .limit(1)
  )[0]?.batch;
}

/**
 * A batch's rollouts that are not dropped, in the order of the claim's answer. Of a trained batch: those it trained.
 * @param dropReason reads in their place those that were dropped for that
 */
export async function readBatchRollouts(
  db: StoreDb,
  tenantId: string,
  batchId: string,
  dropReason?: DropReason,
): Promise<Rollout[]> {
  const isWanted = dropReason === undefined ? isNull(rollouts.dropReason) : eq(rollouts.dropReason, dropReason);
  const rows = await db
    .select({ rollout: rollouts })
    .from(batchEntries)
    .innerJoin(rollouts, eq(rollouts.id, batchEntries.rolloutId))
    .where(and(eq(batchEntries.tenantId, tenantId), eq(batchEntries.batchId, batchId), isWanted))
    .orderBy(asc(rollouts.createdAt), asc(rollouts.groupId), asc(rollouts.id));
  return rows.map((row) => row.rollout);
}

// ------------------------------------------------------------------------------------------------------------------

const insertBatch: (row: typeof batches.$inferInsert) => Statement = insertInto(batches);

/**
 * Finished, without a disposition and in no batch. The `+` keeps SQLite from the index of all of the run's rollouts: the
 * one of those without a disposition is shorter, ever more so as the run goes on.
 */
const FREE = `+r.mode = 'train' and +r.status = 'finished' and r.disposition is null
  and not exists (select 1 from batch_entries e where e.rollout_id = r.id)`;

/** Of a group: nothing is queued or running any more. */
const ENDED = `sum(g.status in ('queued', 'running')) = 0`;

/** The batch is claimed and the version is free or this very one; binds batch id, tenant, version, sha256. */
const OPEN = `b.id = ? and b.tenant_id = ? and b.status = 'claimed' and not exists (select 1 from policy_versions v
  where v.tenant_id = b.tenant_id and v.policy = b.policy and v.version = ? and v.sha256 <> ?)`;

function unknownBatch(batchId: string): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no batch ${batchId}; claim it first`);
}

function refusal(batch: Row, trained: Trained): string {
  const { batchId, version, sha256 } = trained;
  const name = versionName(textOf(batch, "policy"), version);
  if (batch["status"] === "claimed") {
    return `${name} exists with sha256 ${String(batch["sha256"])}, batch ${batchId} was trained into ${sha256}; a version's name is never reused: publish it under the next number, as a trainer does that is started again without the folder ${trained.artifact}`;
  }
  return batch["status"] === "trained"
    ? `batch ${batchId} was trained into version ${String(batch["version"])} already, so it cannot be trained into ${name}; go on with the next step`
    : `batch ${batchId} was abandoned, so it cannot be trained into ${name}; claim a new one`;
}
