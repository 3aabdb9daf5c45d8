import { array, assert, asyncProperty, float, integer, jsonValue, string } from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { newId } from "#shared/ids.ts";
import { packFloats, packIds, unpackFloats, unpackIds } from "#shared/packed.ts";
import {
  abandonBatch,
  claimGroups,
  markTrained,
  readBatch,
  readBatchOfRollout,
  readBatchRollouts,
  readClaimedBatch,
  type Trained,
} from "#shared/store/batches.ts";
import { readCalls, recordCall, type CallRecord } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import {
  createPolicy,
  listPolicies,
  readPolicy,
  readVersion,
  registerVersion,
  retireVersions,
  routePolicy,
} from "#shared/store/policies.ts";
import { readRewardByKey, readRewards, recordRewards } from "#shared/store/rewards.ts";
import {
  cancelRollout,
  closeRollout,
  countRollouts,
  createRollouts,
  dropRollouts,
  extendLease,
  leaseRollouts,
  listQueuedAgents,
  listRollouts,
  readAttempts,
  readRollout,
  readRollouts,
  requeueRollout,
  startSelfRollout,
  sweepExpired,
  type NewRollout,
} from "#shared/store/rollouts.ts";
import { putRun, readMetrics, readRun, readRuns, readSteps, recordMetrics } from "#shared/store/runs.ts";
import { transact, type Row, type Statement, type StoreWriter } from "#shared/store/statement.ts";
import { createTasks, existingTaskIds, listTaskIds, readTask } from "#shared/store/tasks.ts";
import { putTenant, readTenant } from "#shared/store/tenants.ts";
import { isRevoked, listRevoked, revokeToken } from "#shared/store/tokens.ts";
import { readUsage } from "#shared/store/usage.ts";
import { ROLLOUT_STATUSES, ROLLOUT_TRANSITIONS, type RolloutStatus } from "#shared/words.ts";

export interface OpenStore {
  readonly db: StoreDb;
  readonly writer: StoreWriter;
  close(): Promise<void>;
}

/** What every store and every writer must do; run on each of them. Times are given, so nothing waits. */
export function storeContract(name: string, open: () => Promise<OpenStore>): void {
  describe(`store contract: ${name}`, () => {
    let store: OpenStore;
    beforeAll(async () => {
      store = await open();
    });
    afterAll(() => store.close());

    /** A tenant of its own for each test, so that none sees another's rows. */
    const newTenant = (): string => `te_${newId("run")}`;
    const write = (statements: readonly Statement[]): Promise<Row[][]> => store.writer.transact(statements);

    async function queued(tenantId: string, row: Partial<NewRollout> = {}, now = 1000): Promise<string> {
      const id = newId("rollout");
      await write(createRollouts([{ id, tenantId, agent: "flight", mode: "train", maxAttempts: 2, ...row }], now));
      return id;
    }

    async function running(tenantId: string, row: Partial<NewRollout> = {}): Promise<string> {
      const id = await queued(tenantId, row);
      const leased = await transact(
        store.writer,
        leaseRollouts({ tenantId, agent: row.agent ?? "flight", limit: 1, now: 2000, leaseMs: 500 }),
      );
      expect(leased.map(({ rollout }) => rollout.id)).toEqual([id]);
      return id;
    }

    async function finished(tenantId: string, row: Partial<NewRollout> = {}, reward = 1): Promise<string> {
      const id = await running(tenantId, row);
      await write(closeRollout({ tenantId, rolloutId: id, attempt: 1 }, { now: 3000, status: "finished", reward }));
      return id;
    }

    async function brought(to: RolloutStatus, tenantId: string): Promise<string> {
      if (to === "queued") return queued(tenantId);
      const id = await running(tenantId);
      const ref = { tenantId, rolloutId: id, attempt: 1 };
      if (to === "finished") await write(closeRollout(ref, { now: 3000, status: "finished" }));
      if (to === "failed") await write(closeRollout(ref, { now: 3000, status: "failed" }));
      if (to === "cancelled") await write(cancelRollout(tenantId, id, 3000));
      return id;
    }

    describe("rollouts", () => {
      it("starts with the tenant that a single machine uses", async () => {
        expect(await readTenant(store.db, "default")).toMatchObject({
          name: "default",
          settings: { fail_open: false },
        });
      });

      it("leases the oldest queued rollouts of an agent with their input, and opens the attempt", async () => {
        const tenantId = newTenant();
        await write(
          createTasks([
            { tenantId, id: "t1", agent: "flight", split: "train", input: { who: "Ada" }, judge: null, createdAt: 1 },
          ]),
        );
        const late = await queued(tenantId, { taskId: "t1" }, 3000);
        const early = await queued(tenantId, { taskId: "t1" }, 2000);
        const elsewhere = await queued(tenantId, { agent: "calc" }, 1000);
        const leased = await transact(
          store.writer,
          leaseRollouts({ tenantId, agent: "flight", limit: 1, now: 5000, leaseMs: 700 }),
        );
        expect(leased).toHaveLength(1);
        expect(leased[0]?.input).toEqual({ who: "Ada" });
        expect(leased[0]?.rollout).toMatchObject({
          id: early,
          status: "running",
          attempt: 1,
          leaseUntil: 5700,
          startedAt: 5000,
        });
        expect(await readAttempts(store.db, tenantId, [early, late, elsewhere])).toEqual([
          {
            rolloutId: early,
            attempt: 1,
            tenantId,
            status: "running",
            startedAt: 5000,
            finishedAt: null,
            error: null,
          },
        ]);
        expect(await listQueuedAgents(store.db, 5000)).toEqual(
          expect.arrayContaining([
            { tenantId, agent: "calc" },
            { tenantId, agent: "flight" },
          ]),
        );
      });

      it("gives each queued rollout to one of 16 lessees", async () => {
        const tenantId = newTenant();
        const ids = Array.from({ length: 100 }, () => newId("rollout"));
        await write(
          createRollouts(
            ids.map((id) => ({ id, tenantId, agent: "flight", mode: "train", maxAttempts: 1 })),
            1000,
          ),
        );
        const leased = await Promise.all(
          Array.from({ length: 16 }, () =>
            transact(store.writer, leaseRollouts({ tenantId, agent: "flight", limit: 7, now: 2000, leaseMs: 500 })),
          ),
        );
        const got = leased.flat().map(({ rollout }) => rollout.id);
        expect(got.toSorted()).toEqual(ids.toSorted());
      });

      it("does only the legal changes of status, from every status", async () => {
        const tenantId = newTenant();
        const changes: Readonly<Record<RolloutStatus, (id: string) => Statement[]>> = {
          queued: (id) =>
            requeueRollout(
              { tenantId, rolloutId: id, attempt: 1 },
              { now: 4000, notBefore: 4000, error: "again", dropReason: "agent_failed" },
            ),
          running: () => leaseRollouts({ tenantId, agent: "flight", limit: 100, now: 4000, leaseMs: 500 }).statements,
          finished: (id) => closeRollout({ tenantId, rolloutId: id, attempt: 1 }, { now: 4000, status: "finished" }),
          failed: (id) => closeRollout({ tenantId, rolloutId: id, attempt: 1 }, { now: 4000, status: "failed" }),
          cancelled: (id) => cancelRollout(tenantId, id, 4000),
        };
        for (const from of ROLLOUT_STATUSES) {
          for (const to of ROLLOUT_STATUSES) {
            const id = await brought(from, tenantId);
            await write(changes[to](id));
            const isLegal = ROLLOUT_TRANSITIONS[from].includes(to);
            expect(
              (await readRollout(store.db, tenantId, id))?.status,
              `${from} → ${to} is ${isLegal ? "legal" : "not legal"}`,
            ).toBe(isLegal ? to : from);
            await write(cancelRollout(tenantId, id, 9000));
          }
        }
      });

      it("closes once: a second close and one of an older attempt change nothing", async () => {
        const tenantId = newTenant();
        const id = await running(tenantId);
        const outcome = { status: 0.5, terminal: 1, correctness: 1, format: 1, tools: ["memory", "search"] };
        const close = closeRollout(
          { tenantId, rolloutId: id, attempt: 1 },
          { now: 3000, status: "finished", result: "LH 12", reward: 0.75, outcome },
        );
        expect((await write(close))[0]).toEqual([{ id }]);
        const kept = await readRollout(store.db, tenantId, id);
        expect(kept).toMatchObject({ status: "finished", result: "LH 12", reward: 0.75, outcome, finishedAt: 3000 });
        const again = closeRollout({ tenantId, rolloutId: id, attempt: 1 }, { now: 9000, status: "failed", reward: 0 });
        expect((await write(again))[0]).toEqual([]);
        expect(await readRollout(store.db, tenantId, id)).toEqual(kept);
        expect(await readAttempts(store.db, tenantId, [id])).toMatchObject([{ status: "finished", finishedAt: 3000 }]);
      });

      it("retries a failed attempt until the last one, then drops the rollout with the reason", async () => {
        const tenantId = newTenant();
        const id = await running(tenantId, { maxAttempts: 2 });
        const fail = (attempt: number): Statement[] =>
          requeueRollout(
            { tenantId, rolloutId: id, attempt },
            { now: 3000, notBefore: 3500, error: "502 from inference", dropReason: "upstream_failed" },
          );
        expect((await write(fail(1)))[0]).toEqual([{ id, status: "queued" }]);
        const lease = leaseRollouts({ tenantId, agent: "flight", limit: 1, now: 3400, leaseMs: 500 });
        expect(await transact(store.writer, lease), "it is not leased before its time").toEqual([]);
        const later = leaseRollouts({ tenantId, agent: "flight", limit: 1, now: 3600, leaseMs: 500 });
        expect((await transact(store.writer, later))[0]?.rollout.attempt).toBe(2);
        // A late report of the first attempt must not end the second.
        expect((await write(fail(1)))[0]).toEqual([]);
        expect((await write(fail(2)))[0]).toEqual([{ id, status: "failed" }]);
        expect(await readRollout(store.db, tenantId, id)).toMatchObject({
          status: "failed",
          disposition: "dropped",
          dropReason: "upstream_failed",
          reward: null,
          finishedAt: 3000,
        });
        expect((await readAttempts(store.db, tenantId, [id])).map(({ status }) => status)).toEqual([
          "failed",
          "failed",
        ]);
      });

      it("sweeps attempts whose lease has run out, and only those", async () => {
        const tenantId = newTenant();
        const lapsed = await running(tenantId, { agent: "sweep-a", maxAttempts: 2 });
        const last = await running(tenantId, { agent: "sweep-b", maxAttempts: 1 });
        const extended = await running(tenantId, { agent: "sweep-c" });
        await write(extendLease({ tenantId, rolloutId: extended, attempt: 1 }, 9000));
        const own = newId("rollout");
        await write(startSelfRollout({ id: own, tenantId, agent: "flight", mode: "live" }, 2000, 2600));
        const swept = await transact(store.writer, sweepExpired(3000, 400));
        expect(
          swept
            .toSorted((a, b) => (a.id < b.id ? -1 : 1))
            .filter(({ id }) => [lapsed, last, extended, own].includes(id)),
        ).toEqual([
          { id: lapsed, status: "queued" },
          { id: last, status: "failed" },
          { id: own, status: "failed" },
        ]);
        const states = await readRollouts(store.db, tenantId, [lapsed, last, extended, own]);
        expect(states.map(({ status, dropReason, notBefore }) => [status, dropReason, notBefore])).toEqual([
          ["queued", null, 3400],
          ["failed", "timeout", 3400],
          ["running", null, 0],
          ["failed", "timeout", 3400],
        ]);
        expect((await readAttempts(store.db, tenantId, [lapsed, extended])).map(({ status }) => status)).toEqual([
          "timeout",
          "running",
        ]);
      });

      it("drops what has no disposition yet, cancels what has not ended, and leaves the rest", async () => {
        const tenantId = newTenant();
        const waiting = await queued(tenantId, { agent: "other" });
        const done = await finished(tenantId);
        const dropped = await finished(tenantId);
        await write(dropRollouts(tenantId, [dropped], { reason: "stale", now: 4000 }));
        const rows = await write(dropRollouts(tenantId, [waiting, done, dropped], { reason: "run_ended", now: 5000 }));
        expect(rows.at(-1)?.map((row) => row["id"])).toEqual(expect.arrayContaining([waiting, done]));
        expect(rows.at(-1)).toHaveLength(2);
        const states = await readRollouts(store.db, tenantId, [waiting, done, dropped]);
        expect(states.map(({ status, dropReason }) => [status, dropReason])).toEqual([
          ["cancelled", "run_ended"],
          ["finished", "run_ended"],
          ["finished", "stale"],
        ]);
      });

      it("lists newest first, a page at a time, and counts by state", async () => {
        const tenantId = newTenant();
        const ids: string[] = [];
        for (let at = 0; at < 5; at++)
          ids.push(await queued(tenantId, { runId: at < 4 ? "run" : null }, 1000 + (at >> 1)));
        const first = await listRollouts(store.db, tenantId, { limit: 3 });
        const second = await listRollouts(store.db, tenantId, { limit: 3, after: first.at(-1)?.id });
        expect([...first, ...second].map(({ id }) => id)).toEqual(ids.toReversed());
        expect(
          await listRollouts(store.db, tenantId, { runId: "run", statuses: ["queued"], mode: "train" }),
        ).toHaveLength(4);
        expect(await listRollouts(store.db, tenantId, { mode: "val" })).toEqual([]);
        await write(cancelRollout(tenantId, ids[0] ?? "", 2000));
        const counts = await countRollouts(store.db, tenantId, { runId: "run" });
        expect(counts.toSorted((a, b) => a.count - b.count)).toEqual([
          { mode: "train", status: "cancelled", disposition: "dropped", dropReason: "cancelled", count: 1 },
          { mode: "train", status: "queued", disposition: null, dropReason: null, count: 3 },
        ]);
      });
    });

    describe("calls, usage and rewards", () => {
      it("records a call once and counts it once, however often it is written", async () => {
        const tenantId = newTenant();
        const call = sampleCall(tenantId);
        await store.writer.append([recordCall(call), recordCall(call)]);
        await store.writer.append([recordCall({ ...call, completionTokens: 999 })]);
        expect(await readCalls(store.db, tenantId, [call.rolloutId])).toMatchObject([
          {
            id: call.id,
            request: { messages: ["hi"] },
            response: { content: "ho" },
            completionTokens: 2,
            trainable: true,
          },
        ]);
        await store.writer.append([recordCall({ ...sampleCall(tenantId), rolloutId: call.rolloutId, attempt: 2 })]);
        expect(await readUsage(store.db, tenantId)).toEqual([
          {
            tenantId,
            day: "2026-11-21",
            model: "flight@13",
            mode: "train",
            calls: 2,
            promptTokens: 6,
            completionTokens: 4,
          },
        ]);
        expect(await readUsage(store.db, tenantId, "2026-11-22")).toEqual([]);
        expect(await readCalls(store.db, tenantId, [call.rolloutId], { attempt: 2 })).toHaveLength(1);
        expect(await readCalls(store.db, tenantId, [])).toEqual([]);
      });

      it("keeps token ids and logprobs bit for bit, and any JSON and text", async () => {
        const tenantId = newTenant();
        await assert(
          asyncProperty(
            array(integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), { maxLength: 300 }),
            array(float({ noNaN: true }), { maxLength: 300 }),
            jsonValue(),
            string({ unit: "grapheme" }),
            async (ids, logprobs, request, error) => {
              const call = { ...sampleCall(tenantId), request: JSON.stringify(request), error };
              await store.writer.append([
                recordCall({
                  ...call,
                  promptTokenIds: packIds(ids),
                  responseTokenIds: packIds([]),
                  behaviourLogprobs: packFloats(logprobs),
                }),
              ]);
              const [kept] = await readCalls(store.db, tenantId, [call.rolloutId]);
              expect([...unpackIds(kept?.promptTokenIds ?? new Uint8Array(1))]).toEqual(ids);
              expect([...unpackIds(kept?.responseTokenIds ?? new Uint8Array(1))]).toEqual([]);
              expect(unpackFloats(kept?.behaviourLogprobs ?? new Uint8Array(1))).toEqual(Float32Array.from(logprobs));
              expect(kept?.request).toEqual(JSON.parse(JSON.stringify(request)));
              expect(kept?.error).toBe(error);
            },
          ),
          { numRuns: 40 },
        );
      });

      it("keeps numbers as they are: integers, fractions and the ends of a double's range", async () => {
        const values = [0, 1, -1, 2 ** 53 - 1, -(2 ** 53) + 1, 0.1, 1e-300, 1e300, 12345.678];
        const [rows] = await write([
          { sql: `select ${values.map((_, at) => `? as v${at}`).join(", ")}`, args: values },
        ]);
        expect(Object.values(rows?.[0] ?? {})).toEqual(values);
      });

      it("keeps one reward per key, the first", async () => {
        const tenantId = newTenant();
        const rolloutId = newId("rollout");
        const reward = {
          tenantId,
          rolloutId,
          attempt: 1,
          source: "air",
          name: "memory",
          createdAt: 1,
          key: `air:${rolloutId}:1:call_1`,
        } as const;
        await store.writer.append([
          recordRewards([{ ...reward, id: newId("reward"), value: 1 }]),
          recordRewards([{ ...reward, id: newId("reward"), value: -1 }]),
          recordRewards([{ ...reward, id: newId("reward"), value: -1, key: `air:${rolloutId}:1:call_2` }]),
        ]);
        expect((await readRewards(store.db, tenantId, [rolloutId])).map(({ value }) => value)).toEqual([1, -1]);
        expect(await readRewardByKey(store.db, tenantId, reward.key)).toMatchObject({ value: 1 });
      });
    });

    describe("batches", () => {
      interface RunOfGroups {
        readonly tenantId: string;
        readonly runId: string;
        readonly groups: readonly (readonly string[])[];
      }

      /** A run with groups of finished rollouts. */
      async function runOf(groups: number, size: number): Promise<RunOfGroups> {
        const tenantId = newTenant();
        const runId = newId("run");
        const made: string[][] = [];
        for (let group = 0; group < groups; group++) {
          const groupId = newId("group");
          const ids: string[] = [];
          for (let at = 0; at < size; at++) ids.push(await finished(tenantId, { runId, groupId }, at));
          made.push(ids);
        }
        return { tenantId, runId, groups: made };
      }

      const claimOf = (run: RunOfGroups, groups: number, more: { batchId?: string; step?: number } = {}) =>
        claimGroups(
          {
            tenantId: run.tenantId,
            runId: run.runId,
            policy: "flight",
            groups,
            step: 0,
            batchId: newId("batch"),
            ...more,
          },
          5000,
        );

      const trainedInto = (tenantId: string, batchId: string, more: Partial<Trained> = {}): Trained => ({
        tenantId,
        batchId,
        version: 1,
        parentVersion: 0,
        kind: "adapter",
        artifact: "policies/flight/1",
        sha256: "a".repeat(64),
        metrics: { reward: 0.5 },
        ...more,
      });

      it("claims whole groups, oldest first, and more of them under the same id", async () => {
        const run = await runOf(3, 2);
        const batchId = newId("batch");
        const first = await transact(store.writer, claimOf(run, 2, { batchId }));
        expect(first).toEqual(run.groups.slice(0, 2).flat());
        const all = await transact(store.writer, claimOf(run, 5, { batchId }));
        expect(all, "a refill's answer is all that the batch now holds").toEqual(run.groups.flat());
        expect((await readBatchRollouts(store.db, run.tenantId, batchId)).map(({ id }) => id)).toEqual(all);
        expect(await readClaimedBatch(store.db, run.tenantId, run.runId)).toMatchObject({ id: batchId, step: 0 });
        expect(await readBatchOfRollout(store.db, run.tenantId, all[0] ?? "")).toMatchObject({ id: batchId });
      });

      it("leaves groups that have not ended, and what failed, was dropped, is not for training or of another run", async () => {
        const tenantId = newTenant();
        const runId = newId("run");
        const [unended, mixed, alone] = [newId("group"), newId("group"), newId("group")];
        await finished(tenantId, { runId, groupId: unended });
        await finished(tenantId, { runId, groupId: unended });
        const good = [
          await finished(tenantId, { runId, groupId: mixed }),
          await finished(tenantId, { runId, groupId: mixed }),
        ];
        const failing = await running(tenantId, { runId, groupId: mixed });
        await write(
          closeRollout(
            { tenantId, rolloutId: failing, attempt: 1 },
            { now: 3000, status: "failed", disposition: "dropped", dropReason: "agent_failed" },
          ),
        );
        const stale = await finished(tenantId, { runId, groupId: mixed });
        await write(dropRollouts(tenantId, [stale], { reason: "stale", now: 4000 }));
        const single = await finished(tenantId, { runId, groupId: alone });
        await finished(tenantId, { runId: "another", groupId: newId("group") });
        await finished(tenantId, { runId, groupId: mixed, mode: "val" });
        const stillQueued = await queued(tenantId, { runId, groupId: unended });
        const run = { tenantId, runId, groups: [] };
        expect(await transact(store.writer, claimOf(run, 9))).toEqual(good);
        expect(await readRollout(store.db, tenantId, single)).toMatchObject({
          disposition: "dropped",
          dropReason: "zero_spread",
        });
        expect(await readRollout(store.db, tenantId, stillQueued)).toMatchObject({
          status: "queued",
          disposition: null,
        });
      });

      it("puts no rollout in two batches, with 16 claimers at once", async () => {
        const run = await runOf(20, 2);
        const claimed = await Promise.all(
          Array.from({ length: 16 }, (_, step) => transact(store.writer, claimOf(run, 3, { step }))),
        );
        expect(claimed.flat().toSorted()).toEqual(run.groups.flat().toSorted());
      });

      it("gives a step to one batch, until that is abandoned", async () => {
        const run = await runOf(2, 2);
        const batchId = newId("batch");
        await transact(store.writer, claimOf(run, 1, { batchId }));
        await expect(transact(store.writer, claimOf(run, 1))).rejects.toMatchObject({ code: "ERR_CONFLICT" });
        await transact(store.writer, abandonBatch(run.tenantId, batchId, { reason: "run_ended" }));
        await transact(store.writer, abandonBatch(run.tenantId, batchId, { reason: "stale" }));
        expect(await readBatch(store.db, run.tenantId, batchId)).toMatchObject({ status: "abandoned" });
        const given = await readRollouts(store.db, run.tenantId, run.groups[0] ?? []);
        expect(given.map(({ dropReason }) => dropReason)).toEqual(["run_ended", "run_ended"]);
        expect(await transact(store.writer, claimOf(run, 9))).toEqual(run.groups[1]);
        await expect(transact(store.writer, claimOf(run, 1, { batchId }))).rejects.toMatchObject({
          code: "ERR_CONFLICT",
        });
      });

      it("marks a batch trained with its version, its step and its undropped rollouts, and repeats quietly", async () => {
        const run = await runOf(2, 2);
        const batchId = newId("batch");
        const ids = await transact(store.writer, claimOf(run, 2, { batchId, step: 7 }));
        await write(dropRollouts(run.tenantId, ids.slice(0, 2), { reason: "zero_spread", now: 5500 }));
        const trained = trainedInto(run.tenantId, batchId);
        await transact(store.writer, markTrained(trained, 6000));
        await transact(store.writer, markTrained(trained, 9000));
        expect(await readBatch(store.db, run.tenantId, batchId)).toMatchObject({
          status: "trained",
          version: 1,
          trainedAt: 6000,
        });
        expect(await readVersion(store.db, run.tenantId, "flight", 1)).toMatchObject({
          parentVersion: 0,
          kind: "adapter",
          sha256: trained.sha256,
          runId: run.runId,
          batchId,
          step: 7,
        });
        expect(await readSteps(store.db, run.tenantId, run.runId)).toMatchObject([
          { step: 7, version: 1, metrics: { reward: 0.5 } },
        ]);
        const states = await readRollouts(store.db, run.tenantId, ids);
        expect(states.map(({ disposition }) => disposition)).toEqual(["dropped", "dropped", "trained", "trained"]);
        expect((await readBatchRollouts(store.db, run.tenantId, batchId)).map(({ id }) => id)).toEqual(ids.slice(2));
        await write(dropRollouts(run.tenantId, ids, { reason: "run_ended", now: 9000 }));
        expect((await readRollout(store.db, run.tenantId, ids[3] ?? ""))?.disposition).toBe("trained");
      });

      it("changes nothing when a batch cannot be marked trained", async () => {
        const run = await runOf(2, 2);
        const batchId = newId("batch");
        const ids = await transact(store.writer, claimOf(run, 1, { batchId }));
        const version = {
          tenantId: run.tenantId,
          policy: "flight",
          version: 1,
          kind: "adapter",
          createdAt: 1,
        } as const;
        await transact(store.writer, registerVersion({ ...version, artifact: "x", sha256: "b".repeat(64) }));
        const refused = transact(store.writer, markTrained(trainedInto(run.tenantId, batchId), 6000));
        await expect(refused).rejects.toMatchObject({ code: "ERR_CONFLICT" });
        const unknown = transact(store.writer, markTrained(trainedInto(run.tenantId, "ba_none", { version: 2 }), 6000));
        await expect(unknown).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
        expect(await readBatch(store.db, run.tenantId, batchId)).toMatchObject({ status: "claimed", version: null });
        expect(await readSteps(store.db, run.tenantId, run.runId)).toEqual([]);
        expect((await readRollouts(store.db, run.tenantId, ids)).map(({ disposition }) => disposition)).toEqual([
          null,
          null,
        ]);
        await transact(store.writer, markTrained(trainedInto(run.tenantId, batchId, { version: 2 }), 6000));
        const other = transact(store.writer, markTrained(trainedInto(run.tenantId, batchId, { version: 3 }), 6000));
        await expect(other).rejects.toMatchObject({ code: "ERR_CONFLICT" });
        expect(await readVersion(store.db, run.tenantId, "flight", 3)).toBeUndefined();
        const abandoned = transact(store.writer, abandonBatch(run.tenantId, batchId, { reason: "stale" }));
        await expect(abandoned).rejects.toMatchObject({ code: "ERR_CONFLICT" });
      });
    });

    describe("policies, runs, tokens and tenants", () => {
      it("routes only to registered versions and never reuses a version's name", async () => {
        const tenantId = newTenant();
        const base = {
          tenantId,
          name: "flight",
          kind: "base",
          artifact: "policies/flight/0",
          sha256: "0".repeat(64),
        } as const;
        await transact(store.writer, createPolicy(base, 1));
        await transact(store.writer, createPolicy(base, 2));
        const other = transact(store.writer, createPolicy({ ...base, sha256: "1".repeat(64) }, 3));
        await expect(other).rejects.toMatchObject({ code: "ERR_CONFLICT" });
        await expect(transact(store.writer, routePolicy(tenantId, "flight", 1))).rejects.toMatchObject({
          code: "ERR_NOT_FOUND",
        });
        await transact(
          store.writer,
          registerVersion({
            tenantId,
            policy: "flight",
            version: 1,
            kind: "adapter",
            artifact: "x",
            sha256: "2".repeat(64),
            createdAt: 4,
          }),
        );
        await transact(store.writer, routePolicy(tenantId, "flight", 1));
        expect(await readPolicy(store.db, tenantId, "flight")).toMatchObject({ routeVersion: 1, createdAt: 1 });
        const [policy] = await listPolicies(store.db, tenantId);
        expect(policy?.versions.map(({ version }) => version)).toEqual([1, 0]);
      });

      it("retires versions that nobody needs, and routes to none of them any more", async () => {
        const tenantId = newTenant();
        const policy = "flight";
        const [own, other, over] = [newId("run"), newId("run"), newId("run")];
        const version = { tenantId, policy, kind: "adapter", artifact: "x", sha256: "2".repeat(64) } as const;
        const base = { tenantId, name: policy, kind: "base", artifact: "x", sha256: "0".repeat(64) } as const;
        await transact(store.writer, createPolicy(base, 1));
        const runOf = { tenantId, policy, agent: "flight", config: {}, createdAt: 1 };
        await write([own, other].flatMap((id) => putRun({ ...runOf, id })));
        await write(putRun({ ...runOf, id: over, finishedAt: 2 }));
        // `other` began at 2 and `over`, which is finished, at 3; both are behind the run that goes on.
        const lines = [
          [own, 0, 1],
          [own, 1, 2],
          [own, 2, 3],
          [other, 2, 4],
          [over, 3, 5],
          [own, 3, 6],
          [own, 6, 7],
          [own, 7, 8],
          [own, 8, 9],
        ] as const;
        for (const [runId, parentVersion, number] of lines) {
          await transact(
            store.writer,
            registerVersion({ ...version, runId, parentVersion, version: number, createdAt: 1 }),
          );
        }
        await transact(store.writer, routePolicy(tenantId, policy, 6));
        const pinned = await queued(tenantId, { agent: "pinned", mode: "val", pin: "flight@7" });
        const batchId = newId("batch");
        for (let at = 0; at < 2; at++) {
          const rolloutId = await finished(tenantId, { runId: own, groupId: "g" });
          await write(recordCall({ ...sampleCall(tenantId), id: newId("call"), rolloutId, policy, policyVersion: 8 }));
        }
        await transact(store.writer, claimGroups({ tenantId, runId: own, policy, groups: 1, step: 0, batchId }, 3));

        const all = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        const retire = (now: number, versions = all) =>
          transact(store.writer, retireVersions(tenantId, policy, { versions, now }));
        expect(await retire(10)).toEqual([1, 3, 5]);
        expect(await transact(store.writer, retireVersions(newTenant(), policy, { versions: all, now: 10 }))).toEqual(
          [],
        );

        await write(cancelRollout(tenantId, pinned, 11));
        await transact(store.writer, abandonBatch(tenantId, batchId, { reason: "run_ended" }));
        await write(putRun({ ...runOf, id: other, finishedAt: 12 }));
        expect(await retire(12, [1, 2, 4])).toEqual([1, 2, 4]);
        // Routed, and the last of a run that goes on.
        expect(await retire(13)).toEqual([1, 2, 3, 4, 5, 7, 8]);
        expect(await readVersion(store.db, tenantId, policy, 1)).toMatchObject({ retiredAt: 10 });
        expect(await readVersion(store.db, tenantId, policy, 6)).toMatchObject({ retiredAt: null });

        await expect(transact(store.writer, routePolicy(tenantId, policy, 1))).rejects.toMatchObject({
          code: "ERR_CONFLICT",
          message: expect.stringContaining("flight@1 is retired: its weights were removed"),
        });
        expect(await readPolicy(store.db, tenantId, policy)).toMatchObject({ routeVersion: 6 });
      });

      it("completes a run as its parts become known", async () => {
        const tenantId = newTenant();
        const id = newId("run");
        const run = { id, tenantId, policy: "flight", agent: "flight", config: { steps: 3 }, createdAt: 1 };
        await store.writer.append([
          putRun(run),
          putRun({ ...run, evalBefore: { reward: 0.1 } }),
          putRun({ ...run, evalAfter: { reward: 0.6 }, finishedAt: 9, createdAt: 5 }),
        ]);
        expect(await readRun(store.db, tenantId, id)).toEqual({
          ...run,
          evalBefore: { reward: 0.1 },
          evalAfter: { reward: 0.6 },
          finishedAt: 9,
        });
        expect(await readRuns(store.db, tenantId)).toHaveLength(1);
        const point = { runId: id, tenantId, step: 0, name: "rss", createdAt: 1 };
        await store.writer.append([recordMetrics([{ ...point, value: 1 }]), recordMetrics([{ ...point, value: 2 }])]);
        expect(await readMetrics(store.db, tenantId, id)).toMatchObject([{ name: "rss", value: 2 }]);
      });

      it("gives a step's metrics with what was measured after it was written, and only the steps after another", async () => {
        const tenantId = newTenant();
        const runId = newId("run");
        for (const step of [0, 1, 2]) {
          const batchId = newId("batch");
          const groupId = newId("group");
          for (let at = 0; at < 2; at++) await finished(tenantId, { runId, groupId });
          await transact(store.writer, claimGroups({ tenantId, runId, policy: "flight", groups: 1, step, batchId }, 1));
          const made = { version: step + 1, parentVersion: step, kind: "adapter", artifact: "x" } as const;
          const measured = { loss: step, seconds_step: 1 };
          await transact(
            store.writer,
            markTrained({ tenantId, batchId, ...made, sha256: String(step).repeat(64), metrics: measured }, 2),
          );
        }
        const point = { runId, tenantId, createdAt: 3 };
        await write(
          recordMetrics([
            { ...point, step: 0, name: "seconds_step", value: 1.5 },
            { ...point, step: 1, name: "seconds_publish", value: 0.25 },
            { ...point, step: 9, name: "seconds_publish", value: 1 },
            { ...point, tenantId: newTenant(), runId: newId("run"), step: 2, name: "loss", value: 9 },
          ]),
        );
        const all = await readSteps(store.db, tenantId, runId);
        expect(all.map(({ step, metrics }) => [step, metrics])).toEqual([
          [0, { loss: 0, seconds_step: 1.5 }],
          [1, { loss: 1, seconds_step: 1, seconds_publish: 0.25 }],
          [2, { loss: 2, seconds_step: 1 }],
        ]);
        expect(await readSteps(store.db, tenantId, runId, { since: 0 })).toEqual(all.slice(1));
        expect(await readSteps(store.db, tenantId, runId, { since: 2 })).toEqual([]);
        expect(await readSteps(store.db, newTenant(), runId)).toEqual([]);
      });

      it("knows revoked tokens until they expire", async () => {
        const tenantId = newTenant();
        const jti = newId("run");
        expect(await isRevoked(store.db, tenantId, jti)).toBe(false);
        await write(revokeToken({ jti, tenantId, expiresAt: 5000 }, 1000));
        expect(await isRevoked(store.db, tenantId, jti)).toBe(true);
        await write(revokeToken({ jti: `${jti}-2`, tenantId, expiresAt: 9000 }, 6000));
        expect((await listRevoked(store.db)).filter((token) => token.tenantId === tenantId)).toEqual([
          { tenantId, jti: `${jti}-2` },
        ]);
      });

      it("creates and changes tenants", async () => {
        const id = newTenant();
        await write(putTenant({ id, name: "a", settings: { fail_open: false }, createdAt: 1 }));
        await write(putTenant({ id, name: "b", settings: { fail_open: true }, createdAt: 2 }));
        expect(await readTenant(store.db, id)).toEqual({ id, name: "b", settings: { fail_open: true }, createdAt: 1 });
      });
    });

    describe("tenants are walls", () => {
      it("shows nothing of one tenant to another, and changes nothing of it", async () => {
        const owner = newTenant();
        const intruder = newTenant();
        const runId = newId("run");
        const groupId = newId("group");
        await write([
          ...createTasks([
            { tenantId: owner, id: "t1", agent: "flight", split: "train", input: 1, judge: null, createdAt: 1 },
          ]),
          ...putRun({ id: runId, tenantId: owner, policy: "flight", agent: "flight", config: {}, createdAt: 1 }),
          ...recordMetrics([{ runId, tenantId: owner, step: 0, name: "n", value: 1, createdAt: 1 }]),
        ]);
        await transact(
          store.writer,
          createPolicy({ tenantId: owner, name: "flight", kind: "base", artifact: "a", sha256: "0".repeat(64) }, 1),
        );
        const ids = [await finished(owner, { runId, groupId }), await finished(owner, { runId, groupId })];
        const open = await running(owner, { agent: "walled" });
        const call = { ...sampleCall(owner), rolloutId: ids[0] ?? "" };
        await write(recordCall(call));
        await write(
          recordRewards([
            {
              id: newId("reward"),
              tenantId: owner,
              key: "k",
              rolloutId: call.rolloutId,
              attempt: 1,
              source: "explicit",
              name: "n",
              value: 1,
              createdAt: 1,
            },
          ]),
        );
        const before = await readRollouts(store.db, owner, [...ids, open]);

        const ref = { tenantId: intruder, rolloutId: open, attempt: 1 };
        const failing = { now: 4000, notBefore: 4000, error: "x", dropReason: "agent_failed" } as const;
        await write(closeRollout(ref, { now: 4000, status: "failed" }));
        await write(requeueRollout(ref, failing));
        await write(extendLease(ref, 99_999));
        await write(cancelRollout(intruder, open, 4000));
        await write(dropRollouts(intruder, [...ids, open], { reason: "stale", now: 4000 }));
        const batchId = newId("batch");
        await expect(
          transact(
            store.writer,
            claimGroups({ tenantId: intruder, batchId, runId, policy: "flight", step: 5, groups: 9 }, 4000),
          ),
        ).rejects.toMatchObject({ code: "ERR_CONFLICT" });
        await write(
          putRun({ id: runId, tenantId: intruder, policy: "p", agent: "a", config: { stolen: true }, createdAt: 1 }),
        );
        await write(recordMetrics([{ runId, tenantId: intruder, step: 0, name: "n", value: 666, createdAt: 1 }]));
        expect(
          await transact(
            store.writer,
            leaseRollouts({ tenantId: intruder, agent: "walled", limit: 9, now: 9e9, leaseMs: 1 }),
          ),
        ).toEqual([]);
        await expect(transact(store.writer, routePolicy(intruder, "flight", 0))).rejects.toMatchObject({
          code: "ERR_NOT_FOUND",
        });
        expect(await readRollouts(store.db, owner, [...ids, open])).toEqual(before);
        expect((await readRun(store.db, owner, runId))?.config).toEqual({});
        expect((await readMetrics(store.db, owner, runId))[0]?.value).toBe(1);

        const claimed = newId("batch");
        await transact(
          store.writer,
          claimGroups({ tenantId: owner, batchId: claimed, runId, policy: "flight", step: 0, groups: 1 }, 4000),
        );
        for (const change of [
          abandonBatch(intruder, claimed, { reason: "stale" }),
          markTrained(
            {
              tenantId: intruder,
              batchId: claimed,
              version: 1,
              parentVersion: 0,
              kind: "adapter",
              artifact: "a",
              sha256: "0".repeat(64),
              metrics: {},
            },
            5000,
          ),
        ]) {
          await expect(transact(store.writer, change)).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
        }
        expect(await readBatch(store.db, owner, claimed)).toMatchObject({ status: "claimed" });

        const { db } = store;
        const seen: Readonly<Record<string, unknown>> = {
          task: await readTask(db, intruder, "t1"),
          taskIds: await listTaskIds(db, intruder, "flight", "train"),
          existing: [...(await existingTaskIds(db, intruder, ["t1"]))],
          rollout: await readRollout(db, intruder, open),
          rollouts: await readRollouts(db, intruder, ids),
          list: await listRollouts(db, intruder),
          page: await listRollouts(db, intruder, { after: open }),
          counts: await countRollouts(db, intruder),
          attempts: await readAttempts(db, intruder, [open]),
          calls: await readCalls(db, intruder, ids),
          rewards: await readRewards(db, intruder, ids),
          reward: await readRewardByKey(db, intruder, "k"),
          policy: await readPolicy(db, intruder, "flight"),
          policies: await listPolicies(db, intruder),
          version: await readVersion(db, intruder, "flight", 0),
          run: await readRun(db, intruder, runId),
          runs: await readRuns(db, intruder),
          metrics: await readMetrics(db, intruder, runId),
          steps: await readSteps(db, intruder, runId),
          batch: await readBatch(db, intruder, claimed),
          batchOf: await readBatchOfRollout(db, intruder, ids[0] ?? ""),
          batchRollouts: await readBatchRollouts(db, intruder, claimed),
          usage: await readUsage(db, intruder),
        };
        for (const [what, value] of Object.entries(seen)) expect({ [what]: value ?? [] }).toEqual({ [what]: [] });
        expect(await readCalls(db, owner, ids)).toHaveLength(1);
        expect(await readTask(db, owner, "t1")).toMatchObject({ input: 1 });
        expect(await listTaskIds(db, owner, "flight", "train")).toEqual(["t1"]);
        expect([...(await existingTaskIds(db, owner, ["t1", "t2"]))]).toEqual(["t1"]);
      });
    });
  });
}

function sampleCall(tenantId: string): CallRecord {
  return {
    id: newId("call"),
    tenantId,
    rolloutId: newId("rollout"),
    attempt: 1,
    dialect: "chat",
    modelAsked: "gpt-4o",
    policy: "flight",
    policyVersion: 13,
    modelAnswered: "flight@13",
    request: JSON.stringify({ messages: ["hi"] }),
    response: JSON.stringify({ content: "ho" }),
    promptTokens: 3,
    completionTokens: 2,
    httpStatus: 200,
    trainable: true,
    latencyMs: 1.5,
    createdAt: Date.UTC(2026, 10, 21, 23, 59),
    mode: "train",
  };
}
