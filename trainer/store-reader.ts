import { and, asc, eq, inArray, isNull, sql } from "drizzle-orm";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { unpackFloats, unpackIds } from "#shared/packed.ts";
import { wholePrompts } from "#shared/prompt-prefix.ts";
import { readBatch, readBatchRollouts } from "#shared/store/batches.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { countFreeLive } from "#shared/store/live-groups.ts";
import { listPolicies, readLastVersion } from "#shared/store/policies.ts";
import { readRewards, type Reward } from "#shared/store/rewards.ts";
import { countRollouts, readRollouts, type Rollout } from "#shared/store/rollouts.ts";
import { readRun } from "#shared/store/runs.ts";
import { listTaskIds } from "#shared/store/tasks.ts";
import { batchEntries, batches, calls, rollouts } from "#shared/tables.ts";
import { JUDGE_ROLE, type DropReason, type RolloutStatus } from "#shared/words.ts";
import type { CallRecord, IntermediateReward, OutcomeRecord, Records, RolloutRecord } from "./records.ts";

/** Rollouts whose calls are read in one question: libSQL answers with 10 MB at most. */
const ROLLOUTS_PER_READ = 64;
/** Ids in one question. */
const IDS_PER_READ = 1000;

/** The trainer's reads, straight from libSQL with a token that may only read. */
export function storeReader(db: StoreDb, tenantId: string): Records {
  return {
    async policy(name) {
      const policy = (await listPolicies(db, tenantId)).find((each) => each.name === name);
      const base = policy?.versions.find((each) => each.version === 0);
      if (policy === undefined || base === undefined) return undefined;
      const versions = policy.versions.map(({ version, kind, artifact, sha256 }) => ({
        version,
        kind,
        artifact,
        sha256,
      }));
      return { routeVersion: policy.routeVersion, baseArtifact: base.artifact, versions };
    },

    lastVersion: (policy) => readLastVersion(db, tenantId, policy),
    run: (id) => readRun(db, tenantId, id),
    taskIds: (agent, split) => listTaskIds(db, tenantId, agent, split),
    batch: (id) => readBatch(db, tenantId, id),

    async trainedSteps(runId) {
      const [row] = await db
        .select({ count: sql<number>`count(*)` })
        .from(batches)
        .where(and(eq(batches.tenantId, tenantId), eq(batches.runId, runId), eq(batches.status, "trained")));
      return row?.count ?? 0;
    },

    async waitingGroups(runId, from) {
      const rows = await db
        .select({
          groupId: sql<string>`${rollouts.groupId}`,
          ids: sql<string>`json_group_array(${rollouts.id})`,
          open: sql<string>`json_group_array(${rollouts.id}) filter (where ${rollouts.status} in ('queued', 'running'))`,
          finished: sql<number>`sum(${rollouts.status} = 'finished')`,
        })
        .from(rollouts)
        .where(
          and(
            eq(rollouts.tenantId, tenantId),
            // Polled while a run goes on. The plus keeps SQLite from taking the index of the run, with all its rollouts,
            // where the index of groups leads to the few that wait.
            from === undefined ? eq(rollouts.runId, runId) : sql`+${rollouts.runId} = ${runId}`,
            eq(rollouts.mode, "train"),
            isNull(rollouts.disposition),
            from === undefined ? sql`${rollouts.groupId} is not null` : sql`${rollouts.groupId} >= ${from}`,
            sql`not exists (select 1 from batch_entries e where e.rollout_id = ${rollouts.id})`,
          ),
        )
        .groupBy(rollouts.groupId)
        .orderBy(asc(rollouts.groupId));
      return rows.map(({ groupId, ids, open, finished }) => ({
        groupId,
        rolloutIds: idsSchema.parse(JSON.parse(ids)),
        open: idsSchema.parse(JSON.parse(open)),
        finished,
      }));
    },

    countLive: ({ policy, ...live }) => countFreeLive(db, { tenantId, policy }, live),

    async lastGroupId(runId) {
      const [row] = await db
        .select({ last: sql<string | null>`max(${rollouts.groupId})` })
        .from(rollouts)
        .where(and(eq(rollouts.tenantId, tenantId), eq(rollouts.runId, runId), eq(rollouts.mode, "train")));
      return row?.last ?? undefined;
    },

    batchRollouts: (batchId) => readRecords(db, tenantId, batchId),
    flatRollouts: (batchId) => readRecords(db, tenantId, batchId, "zero_spread"),

    async countStatuses(ids) {
      const counts: Partial<Record<RolloutStatus, number>> = {};
      for (const part of chunks(ids, IDS_PER_READ)) {
        const rows = await db
          .select({ status: rollouts.status, count: sql<number>`count(*)` })
          .from(rollouts)
          .where(
            and(
              eq(rollouts.tenantId, tenantId),
              sql`${rollouts.id} in (select value from json_each(${JSON.stringify(part)}))`,
            ),
          )
          .groupBy(rollouts.status);
        for (const { status, count } of rows) counts[status] = (counts[status] ?? 0) + count;
      }
      return counts;
    },

    async outcomes(ids) {
      const found: OutcomeRecord[] = [];
      for (const part of chunks(ids, IDS_PER_READ)) found.push(...(await readRollouts(db, tenantId, part)));
      return found;
    },

    async fates(runId, batchId) {
      const reasons = { reason: rollouts.dropReason, count: sql<number>`count(*)` };
      const own = and(eq(rollouts.tenantId, tenantId), eq(rollouts.runId, runId));
      const [batch, failed, [open]] = await Promise.all([
        db
          .select(reasons)
          .from(batchEntries)
          .innerJoin(rollouts, eq(rollouts.id, batchEntries.rolloutId))
          .where(and(eq(batchEntries.tenantId, tenantId), eq(batchEntries.batchId, batchId)))
          .groupBy(rollouts.dropReason),
        db
          .select(reasons)
          .from(rollouts)
          .where(and(own, eq(rollouts.mode, "train"), inArray(rollouts.status, ["failed", "cancelled"])))
          .groupBy(rollouts.dropReason),
        db
          .select({ count: sql<number>`count(*)` })
          .from(rollouts)
          .where(and(own, isNull(rollouts.disposition))),
      ]);
      return { batchDropped: byReason(batch), runFailed: byReason(failed), open: open?.count ?? 0 };
    },

    async totals(runId) {
      const states = await countRollouts(db, tenantId, { runId });
      const dropped: Partial<Record<DropReason, number>> = {};
      for (const { dropReason, count } of states) {
        if (dropReason !== null) dropped[dropReason] = (dropped[dropReason] ?? 0) + count;
      }
      const [row] = await db
        .select({ count: sql<number>`count(*)` })
        .from(calls)
        .innerJoin(rollouts, eq(rollouts.id, calls.rolloutId))
        .where(and(eq(rollouts.tenantId, tenantId), eq(rollouts.runId, runId)));
      return { rollouts: states.reduce((sum, each) => sum + each.count, 0), calls: row?.count ?? 0, dropped };
    },
  };
}

function byReason(rows: readonly { readonly reason: DropReason | null; readonly count: number }[]) {
  const counts: Partial<Record<DropReason, number>> = {};
  for (const { reason, count } of rows) if (reason !== null) counts[reason] = count;
  return counts;
}

const idsSchema = z.array(z.string());
const toolCallsSchema = z.looseObject({ tool_calls: z.array(z.looseObject({ id: z.string() })) });
const detailSchema = z.looseObject({ tool_call_id: z.string() });

async function readRecords(
  db: StoreDb,
  tenantId: string,
  batchId: string,
  dropReason?: DropReason,
): Promise<RolloutRecord[]> {
  const [claimed, batch] = await Promise.all([
    readBatchRollouts(db, tenantId, batchId, dropReason),
    readBatch(db, tenantId, batchId),
  ]);
  const records: RolloutRecord[] = [];
  for (const part of chunks(claimed, ROLLOUTS_PER_READ)) {
    const ids = part.map((rollout) => rollout.id);
    const [callRows, rewardRows] = await Promise.all([readTokens(db, tenantId, ids), readRewards(db, tenantId, ids)]);
    records.push(...part.map((rollout) => joined(rollout, { policy: batch?.policy, callRows, rewardRows })));
  }
  return records;
}

type TokenRow = Awaited<ReturnType<typeof readTokens>>[number];

/** The calls' ids, logprobs and answers, not their requests, which are most of their bytes. */
async function readTokens(db: StoreDb, tenantId: string, rolloutIds: readonly string[]) {
  const rows = await db
    .select({
      id: calls.id,
      rolloutId: calls.rolloutId,
      attempt: calls.attempt,
      role: calls.role,
      policy: calls.policy,
      policyVersion: calls.policyVersion,
      response: calls.response,
      prefixCallId: calls.prefixCallId,
      prefixTokens: calls.prefixTokens,
      promptTokenIds: calls.promptTokenIds,
      responseTokenIds: calls.responseTokenIds,
      behaviourLogprobs: calls.behaviourLogprobs,
      trainable: calls.trainable,
      finishReason: calls.finishReason,
      latencyMs: calls.latencyMs,
      createdAt: calls.createdAt,
    })
    .from(calls)
    .where(
      and(
        eq(calls.tenantId, tenantId),
        sql`${calls.rolloutId} in (select value from json_each(${JSON.stringify(rolloutIds)}))`,
      ),
    )
    .orderBy(asc(calls.rolloutId), asc(calls.attempt), asc(calls.createdAt), asc(calls.id));
  const prompts = wholePrompts(rows);
  return rows.map((row) => ({ ...row, promptTokenIds: prompts.get(row.id) ?? null }));
}

interface Rows {
  /** The batch's. */
  readonly policy: string | undefined;
  readonly callRows: readonly TokenRow[];
  readonly rewardRows: readonly Reward[];
}

/**
 * A rollout with the agent's calls and the rewards of the attempt that ended it; those of failed attempts stay in the store,
 * as do calls that a judge made or that another policy answered: its weights are not the ones that are trained.
 */
function joined(rollout: Rollout, { policy, callRows, rewardRows }: Rows): RolloutRecord {
  const { id, groupId, taskId, attempt, status, reward, outcome } = rollout;
  if (groupId === null) throw new FulgurError("ERR_STORE", `rollout ${id} is in a batch but in no group`);
  const isOwn = (row: { readonly rolloutId: string; readonly attempt: number }): boolean =>
    row.rolloutId === id && row.attempt === attempt;
  return {
    id,
    groupId,
    taskId,
    status,
    reward,
    outcome,
    calls: callRows
      .filter((row) => isOwn(row) && row.role !== JUDGE_ROLE && (row.policy === null || row.policy === policy))
      .map(callRecord),
    intermediate: rewardRows
      .filter((row) => isOwn(row) && (row.source === "air" || row.callId !== null))
      .map(intermediateReward),
  };
}

function callRecord(row: TokenRow): CallRecord {
  const {
    id: callId,
    role,
    promptTokenIds,
    responseTokenIds,
    behaviourLogprobs,
    policyVersion,
    trainable,
    finishReason,
    latencyMs,
  } = row;
  return {
    callId,
    role,
    policyVersion,
    trainable,
    finishReason,
    latencyMs,
    startedAt: row.createdAt,
    promptTokenIds: promptTokenIds === null ? null : unpackIds(promptTokenIds),
    responseTokenIds: responseTokenIds === null ? null : unpackIds(responseTokenIds),
    behaviourLogprobs: behaviourLogprobs === null ? null : unpackFloats(behaviourLogprobs),
    toolCallIds: toolCallsSchema.safeParse(row.response).data?.tool_calls.map((call) => call.id) ?? [],
  };
}

function intermediateReward({ callId, detail, value }: Reward): IntermediateReward {
  return { callId, value, toolCallId: detailSchema.safeParse(detail).data?.tool_call_id ?? null };
}

function chunks<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, at) => items.slice(at * size, (at + 1) * size));
}
