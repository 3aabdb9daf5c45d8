import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { packFloats, packIds } from "#shared/packed.ts";
import { claimGroups, markTrained } from "#shared/store/batches.ts";
import { recordCall, type CallRecord } from "#shared/store/calls.ts";
import { createPolicy, registerVersion } from "#shared/store/policies.ts";
import { recordRewards } from "#shared/store/rewards.ts";
import { closeRollout, createRollouts, dropRollouts, leaseRollouts } from "#shared/store/rollouts.ts";
import { putRun } from "#shared/store/runs.ts";
import { transact } from "#shared/store/statement.ts";
import { createTasks } from "#shared/store/tasks.ts";
import { storeReader } from "../../trainer/store-reader.ts";
import type { Records } from "../../trainer/records.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

const TENANT = "te_reader";
const RUN = "ru_reader";
const outcome = { status: 0.5, terminal: 1, correctness: 1, format: 1, tools: ["memory", "search"] };

let store: TestStore;
let records: Records;

beforeAll(async () => {
  store = await startTestStore();
  records = storeReader(store.db, TENANT);
  const write = (statements: Parameters<typeof store.writer.transact>[0]) => store.writer.transact(statements);

  await write(
    createPolicy({ tenantId: TENANT, name: "flight", kind: "base", artifact: "/v/0", sha256: "a" }, 1).statements,
  );
  await write(
    registerVersion({
      tenantId: TENANT,
      policy: "flight",
      version: 4,
      kind: "adapter",
      artifact: "/v/4",
      sha256: "b",
      createdAt: 2,
    }).statements,
  );
  const task = { tenantId: TENANT, agent: "flight", input: {}, createdAt: 1 };
  await write(
    createTasks([
      { ...task, id: "t2", split: "train" },
      { ...task, id: "t1", split: "train" },
      { ...task, id: "v1", split: "val" },
    ]),
  );
  await write(
    putRun({
      id: RUN,
      tenantId: TENANT,
      policy: "flight",
      agent: "flight",
      config: {},
      evalBefore: { n: 1 },
      createdAt: 1,
    }),
  );
  // g1: two finished; g2: one finished, one running; g3: dropped. Another tenant's group must not show.
  const rollout = { tenantId: TENANT, agent: "flight", mode: "train" as const, runId: RUN, maxAttempts: 1 };
  await write(
    createRollouts(
      ["g1", "g2", "g3"].flatMap((groupId) =>
        [0, 1].map((at) => ({ ...rollout, id: `${groupId}_${at}`, groupId, taskId: "t1" })),
      ),
      10,
    ),
  );
  await write(createRollouts([{ ...rollout, tenantId: "te_other", id: "other", groupId: "g9" }], 10));
  await transact(store.writer, leaseRollouts({ tenantId: TENANT, agent: "flight", limit: 4, now: 20, leaseMs: 1000 }));
  for (const [at, id] of ["g1_0", "g1_1", "g2_0"].entries()) {
    const ref = { tenantId: TENANT, rolloutId: id, attempt: 1 };
    await write(recordCall(callOf(id, "a", 30, { toolCallId: `tool_${id}` })));
    await write(recordCall({ ...callOf(id, "b", 40, {}), role: "checker" }));
    // A judge's call is in the rollout and no part of what the agent did.
    await write(recordCall({ ...callOf(id, "judge", 45, {}), role: "judge", policyVersion: 0 }));
    // Nor is one that another policy answered what this one is trained on.
    await write(recordCall({ ...callOf(id, "other", 42, {}), policy: "planner" }));
    // A call of an attempt that is over belongs to no trajectory.
    await write(recordCall({ ...callOf(id, "old", 5, {}), attempt: 0 }));
    await write(
      recordRewards([
        {
          id: `re_${id}`,
          tenantId: TENANT,
          key: `air:${id}`,
          rolloutId: id,
          attempt: 1,
          callId: null,
          source: "air",
          name: "memory",
          value: 0.3,
          detail: { tool_call_id: `tool_${id}` },
          createdAt: 41,
        },
        {
          id: `rt_${id}`,
          tenantId: TENANT,
          key: `terminal:${id}`,
          rolloutId: id,
          attempt: 1,
          callId: null,
          source: "terminal",
          name: "terminal",
          value: 1,
          detail: null,
          createdAt: 42,
        },
      ]),
    );
    await write(closeRollout(ref, { now: 50, status: "finished", reward: at, outcome }));
  }
  await write(dropRollouts(TENANT, ["g3_0", "g3_1"], { reason: "stale", now: 60 }));
}, 60_000);
afterAll(() => store.stop());

function callOf(rolloutId: string, name: string, createdAt: number, given: { toolCallId?: string }): CallRecord {
  const message =
    given.toolCallId === undefined ? { content: "done" } : { tool_calls: [{ id: given.toolCallId, function: {} }] };
  return {
    id: `ca_${rolloutId}_${name}`,
    tenantId: TENANT,
    rolloutId,
    attempt: 1,
    dialect: "chat",
    modelAsked: "gpt",
    policy: "flight",
    policyVersion: 4,
    request: "{}",
    response: JSON.stringify(message),
    promptTokenIds: packIds([1, 2]),
    responseTokenIds: packIds([3]),
    behaviourLogprobs: packFloats([-0.5]),
    httpStatus: 200,
    finishReason: "length",
    trainable: true,
    latencyMs: 7,
    createdAt,
    mode: "train",
  };
}

describe("storeReader", () => {
  it("reads what a run begins from", async () => {
    expect(await records.policy("flight")).toMatchObject({ routeVersion: 0, baseArtifact: "/v/0" });
    expect(await records.lastVersion("flight")).toBe(4);
    expect(await records.lastVersion("none")).toBe(0);
    expect(await records.policy("none")).toBeUndefined();
    expect(await records.taskIds("flight", "train")).toEqual(["t1", "t2"]);
    expect(await records.run(RUN)).toMatchObject({ evalBefore: { n: 1 }, evalAfter: null, finishedAt: null });
    expect(await records.lastGroupId(RUN)).toBe("g3");
    expect(await records.lastGroupId("ru_none")).toBeUndefined();
  });

  it("sees groups wait until they are claimed or dropped, and claimed ones with their calls and rewards", async () => {
    const g2 = { groupId: "g2", rolloutIds: ["g2_0", "g2_1"], open: ["g2_1"], finished: 1 };
    expect(await records.waitingGroups(RUN)).toEqual([
      { groupId: "g1", rolloutIds: ["g1_0", "g1_1"], open: [], finished: 2 },
      g2,
    ]);
    expect(await records.waitingGroups(RUN, "g2")).toEqual([g2]);
    const claim = { tenantId: TENANT, batchId: "ba_1", runId: RUN, policy: "flight", step: 0, groups: 5 };
    expect(await transact(store.writer, claimGroups(claim, 70))).toEqual(["g1_0", "g1_1"]);
    expect(await records.waitingGroups(RUN)).toEqual([g2]);
    expect(await records.batch("ba_1")).toMatchObject({ status: "claimed", version: null });

    const [first, second] = await records.batchRollouts("ba_1");
    expect(first).toMatchObject({ id: "g1_0", groupId: "g1", taskId: "t1", status: "finished", reward: 0, outcome });
    expect(second).toMatchObject({ id: "g1_1", reward: 1 });
    expect(first?.intermediate).toEqual([{ callId: null, toolCallId: "tool_g1_0", value: 0.3 }]);
    expect(first?.calls).toEqual([
      {
        callId: "ca_g1_0_a",
        role: "main",
        policyVersion: 4,
        trainable: true,
        latencyMs: 7,
        startedAt: 30,
        promptTokenIds: Int32Array.of(1, 2),
        responseTokenIds: Int32Array.of(3),
        behaviourLogprobs: Float32Array.of(-0.5),
        toolCallIds: ["tool_g1_0"],
        finishReason: "length",
      },
      expect.objectContaining({ callId: "ca_g1_0_b", role: "checker", toolCallIds: [] }),
    ]);
    expect(await records.batchRollouts("ba_none")).toEqual([]);
    expect(await records.flatRollouts("ba_1")).toEqual([]);
    await store.writer.transact(dropRollouts(TENANT, ["g1_1"], { reason: "zero_spread", now: 75 }));
    expect(await records.batchRollouts("ba_1")).toEqual([first]);
    expect(await records.flatRollouts("ba_1")).toEqual([second]);

    expect(await records.trainedSteps(RUN)).toBe(0);
    const trained = {
      tenantId: TENANT,
      batchId: "ba_1",
      version: 5,
      parentVersion: 4,
      kind: "adapter" as const,
      artifact: "/v/5",
      sha256: "c",
      metrics: {},
    };
    await transact(store.writer, markTrained(trained, 80));
    expect(await records.trainedSteps(RUN)).toBe(1);
    expect(await records.batch("ba_1")).toMatchObject({ status: "trained", version: 5 });
  });

  it("counts and lists rollouts, of the run alone and of the tenant alone", async () => {
    expect(await records.countStatuses(["g1_0", "g2_1", "g3_0", "other"])).toEqual({
      finished: 1,
      running: 1,
      cancelled: 1,
    });
    expect((await records.outcomes(["g1_1", "other"])).map(({ id, reward }) => ({ id, reward }))).toEqual([
      { id: "g1_1", reward: 1 },
    ]);
    expect(await records.totals(RUN)).toEqual({ rollouts: 6, calls: 15, dropped: { stale: 2, zero_spread: 1 } });
  });

  it("knows what became of the rollouts that do not train", async () => {
    const fates = { batchDropped: { zero_spread: 1 }, runFailed: { stale: 2 }, open: 2 };
    expect(await records.fates(RUN, "ba_1")).toEqual(fates);
    expect(await records.fates(RUN, "ba_none")).toEqual({ ...fates, batchDropped: {} });
    expect(await records.fates("ru_none", "ba_1")).toEqual({
      batchDropped: { zero_spread: 1 },
      runFailed: {},
      open: 0,
    });
  });
});
