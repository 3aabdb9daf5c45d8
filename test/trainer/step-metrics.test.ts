import { describe, expect, it } from "vitest";
import { NO_BASELINE } from "../../trainer/advantage/lone-baseline.ts";
import type { Batch } from "../../trainer/batch/claim.ts";
import { sift } from "../../trainer/batch/sift.ts";
import type { LearnReport } from "../../trainer/learn.ts";
import type { RolloutRecord } from "../../trainer/records.ts";
import { bestVersion, decodeTime, sampledRewards, stepMetrics, type StepFacts } from "../../trainer/step-metrics.ts";

function record(id: string, reward: number, first: string, given: Partial<RolloutRecord> = {}): RolloutRecord {
  return {
    id,
    groupId: "g",
    taskId: "t1",
    status: "finished",
    reward,
    outcome: { status: 0, terminal: reward, correctness: reward, format: 1, tools: [first] },
    intermediate: [],
    calls: [callAt(0, 100, 2, 3)],
    ...given,
  };
}

function callAt(startedAt: number, latencyMs: number, tokens: number, policyVersion: number | null) {
  return {
    callId: `c${startedAt}`,
    promptTokenIds: Int32Array.of(1, 2, 3),
    responseTokenIds: new Int32Array(tokens).fill(9),
    behaviourLogprobs: new Float32Array(tokens).fill(-1),
    policyVersion,
    trainable: true,
    role: "main",
    toolCallIds: [],
    finishReason: tokens > 3 ? "length" : "stop",
    startedAt,
    latencyMs,
  };
}

describe("decodeTime", () => {
  it("counts the time in which at least one call was under way", () => {
    const calls = [callAt(0, 100, 4, 1), callAt(50, 100, 4, 1), callAt(60, 10, 4, 1), callAt(300, 50, 8, 1)];
    expect(decodeTime([record("a", 1, "memory", { calls })])).toEqual({ tokens: 20, seconds: 0.2 });
    expect(decodeTime([])).toEqual({ tokens: 0, seconds: 0 });
  });
});

const report: LearnReport = {
  loss: -0.1,
  clip_low_fraction: 0,
  clip_high_fraction: 0,
  kl_reference: 0,
  kl_behaviour: 1e-4,
  importance_weight_mean: 1,
  importance_weight_max: 1.1,
  ess: 0.99,
  entropy: 0.3,
  grad_norm: 0.2,
  rows: 2,
  tokens: 10,
  action_tokens: 4,
  seconds: 0.5,
};

const facts: StepFacts = {
  report,
  watchFirstTool: "memory",
  measured: { seconds: { wait: 1, backward: 0.4, optimizer: 0.05 }, flops: 2e12 },
  stepSeconds: 2,
  learningRate: 1e-3,
  hasReference: false,
  fates: { batchDropped: { zero_spread: 2, stale: 4 }, runFailed: { timeout: 5 }, open: 3 },
  peakTflops: undefined,
};

function batchOf(claimed: readonly RolloutRecord[], given: Partial<Batch> = {}): Batch {
  const { groups } = sift(claimed, {
    credit: { type: "identical" },
    advantage: { type: "group-mean" },
    lineage: { base: 0, made: [1, 2, 3, 4, 5, 6, 7, 8, 9] },
    step: 3,
    maxStaleness: 3,
  });
  return {
    batchId: "ba",
    groups,
    claimed,
    claimedGroups: 2,
    flatGroups: 1,
    stale: 0,
    baseline: NO_BASELINE,
    ...given,
  };
}

describe("stepMetrics", () => {
  it("takes the means of verdicts over what was judged, and has none where nothing was", () => {
    const live = [record("a", 1, "memory", { outcome: null }), record("b", 0, "search", { outcome: null })];
    const metrics = stepMetrics(batchOf(live), facts);
    expect(metrics).toMatchObject({ reward_mean: 0.5, turns_mean: 1 });
    for (const name of ["first_tool_rate", "correct_rate", "format_rate"]) expect(metrics).not.toHaveProperty(name);
    const mixed = stepMetrics(batchOf([...live, record("c", 1, "memory")]), facts);
    expect(mixed).toMatchObject({ first_tool_rate: 1, correct_rate: 1, format_rate: 1 });
  });

  it("takes the means of outcomes over all that was claimed, also of flat groups", () => {
    const good = [record("a", 1, "memory"), record("b", 0, "search")];
    const flat = [record("c", 1, "memory", { groupId: "f" }), record("d", 1, "memory", { groupId: "f" })];
    const metrics = stepMetrics(batchOf([...good, ...flat]), facts);
    expect(metrics).toMatchObject({
      reward_mean: 0.75,
      first_tool_rate: 0.75,
      correct_rate: 0.75,
      zero_spread_fraction: 0.5,
      groups: 1,
      rollouts: 2,
      rollouts_claimed: 4,
      rows: 2,
      staleness_mean: 0,
      turns_mean: 1,
      prompt_tokens_mean: 3,
      response_tokens_mean: 2,
      merge_failures: 0,
      kl_behaviour: 1e-4,
      tokens_per_s_train: 20,
      tokens_per_s_decode: 80,
      seconds_wait: 1,
      seconds_backward: 0.4,
      seconds_optimizer: 0.05,
      seconds_train: 0.5,
      seconds_step: 2,
    });
    expect(metrics["advantage_spread"]).toBeCloseTo(Math.SQRT1_2, 12);
    expect(metrics["reward_std"]).toBeCloseTo(Math.sqrt(3) / 4, 12);
    expect(Object.values(metrics).every(Number.isFinite)).toBe(true);
  });

  it("tells rewards apart by task and by the roles that took part, and takes no reward for none", () => {
    const writer = [callAt(0, 1, 2, 3)];
    const both = [
      callAt(0, 1, 2, 3),
      { ...callAt(1, 1, 2, 3), role: "writer" },
      { ...callAt(2, 1, 2, 3), role: "writer" },
    ];
    const metrics = stepMetrics(
      batchOf([
        record("a", 1, "memory", { calls: both }),
        record("b", 0, "memory", { calls: writer }),
        record("c", 0.5, "memory", { taskId: "t2", groupId: "h" }),
        record("d", 0, "memory", { taskId: "t2", groupId: "h", reward: null }),
        record("e", 0, "memory", { taskId: null, groupId: "h" }),
      ]),
      facts,
    );
    expect(metrics).toMatchObject({
      reward_mean: 0.375,
      "reward_mean/task/t1": 0.5,
      "reward_std/task/t1": 0.5,
      "reward_mean/task/t2": 0.5,
      "reward_std/task/t2": 0,
      "reward_mean/role/main": 0.375,
      "reward_mean/role/writer": 1,
      "reward_std/role/writer": 0,
    });
  });

  it("leaves tasks together where a batch has over 64 of them", () => {
    const many = (count: number) =>
      Array.from({ length: count }, (_, at) =>
        record(`r${at}`, at % 2, "memory", { taskId: `t${at}`, groupId: `g${at >> 1}` }),
      );
    const keysOf = (count: number) =>
      Object.keys(stepMetrics(batchOf(many(count)), facts)).filter((key) => key.startsWith("reward_mean/task/"));
    expect(keysOf(64)).toHaveLength(64);
    expect(keysOf(65)).toHaveLength(0);
  });

  it("counts what was cut off, what is how old, what broke and what became of the run's rollouts", () => {
    const diverged = { ...callAt(1, 1, 5, 3), promptTokenIds: Int32Array.of(7, 7, 7, 7, 7, 7, 7) };
    const refused = { ...callAt(2, 1, 1, 3), trainable: false };
    const metrics = stepMetrics(
      batchOf(
        [
          record("a", 1, "memory", { calls: [callAt(0, 1, 2, 1), diverged, refused] }),
          record("b", 0, "memory"),
          record("c", 0, "memory"),
        ],
        { stale: 2 },
      ),
      facts,
    );
    expect(metrics).toMatchObject({
      truncated_fraction: 1 / 5,
      prompt_tokens_max: 7,
      response_tokens_max: 5,
      staleness_max: 2,
      "staleness_rollouts/versions/0": 2,
      "staleness_rollouts/versions/1": 0,
      "staleness_rollouts/versions/2": 1,
      dropped_stale: 2,
      merge_rate: 0,
      merge_failures: 1,
      "merge_failures/reason/prompt_diverged": 1,
      calls_skipped: 1,
      "calls_skipped/reason/untrainable": 1,
      batch_dropped: 6,
      "batch_dropped/reason/zero_spread": 2,
      "batch_dropped/reason/stale": 4,
      run_failed: 5,
      "run_failed/reason/timeout": 5,
      rollouts_open: 3,
    });
  });

  it("tells the share of later calls that merge, and nothing where there was none", () => {
    const first = callAt(0, 1, 2, 3);
    const tokens = [...(first.promptTokenIds ?? []), ...(first.responseTokenIds ?? [])];
    const next = { ...callAt(1, 1, 2, 3), promptTokenIds: Int32Array.from([...tokens, 9]) };
    const diverged = { ...callAt(2, 1, 2, 3), promptTokenIds: Int32Array.of(7, 7, 7, 7, 7, 7, 7, 7) };
    const rateOf = (...calls: readonly (typeof first)[][]): number | undefined =>
      stepMetrics(
        batchOf([
          ...calls.map((own, at) => record(`r${at}`, at % 2, "memory", { calls: own })),
          record("z", 0.5, "memory"),
        ]),
        facts,
      )["merge_rate"];
    expect(rateOf([first, next], [first, next])).toBe(1);
    expect(rateOf([first, next, diverged], [first, next])).toBeCloseTo(2 / 3, 12);
    expect(rateOf([first], [first])).toBeUndefined();
  });

  it("leaves out what was not measured: KL without a reference, utilisation without a peak", () => {
    const batch = batchOf([record("a", 1, "memory"), record("b", 0, "memory")]);
    const without = stepMetrics(batch, facts);
    expect(without).not.toHaveProperty("kl_reference");
    expect(without).not.toHaveProperty("mfu");
    expect(without).not.toHaveProperty("seconds_reference");
    expect(without["tflops"]).toBe(4);
    const measured = { seconds: { reference: 0.1 }, flops: 1e12 };
    expect(stepMetrics(batch, { ...facts, hasReference: true, measured, peakTflops: 8 })).toMatchObject({
      kl_reference: 0,
      seconds_reference: 0.1,
      tflops: 2,
      mfu: 0.25,
    });
  });
});

describe("the rewards of a run's versions", () => {
  it("are added up by the oldest call of each rollout", () => {
    const mixed = record("m", 0.5, "memory", { calls: [callAt(0, 1, 1, 2), callAt(1, 1, 1, 1)] });
    const lost = record("l", 1, "memory", { calls: [callAt(0, 1, 1, null)] });
    const rewards = sampledRewards(
      [{ version: 1, sum: 1, count: 2 }],
      [
        mixed,
        lost,
        record("n", 1, "memory", { calls: [callAt(0, 1, 1, 2)] }),
        record("another run's", 1, "memory", { calls: [callAt(0, 1, 1, 5)] }),
      ],
      { base: 1, made: [2, 6] },
    );
    expect(rewards).toEqual([
      { version: 1, sum: 1.5, count: 3 },
      { version: 2, sum: 1, count: 1 },
    ]);
  });

  it("name the best one by itself and its neighbours, the later on a tie", () => {
    const of = (...means: readonly number[]) => means.map((mean, version) => ({ version, sum: mean * 10, count: 10 }));
    // One lucky version between poor ones does not win over a steady line.
    expect(bestVersion(of(0.1, 0.9, 0.1, 0.6, 0.6, 0.6, 0.2))).toBe(4);
    expect(bestVersion(of(0.5, 0.5, 0.5))).toBe(2);
    expect(bestVersion([])).toBeUndefined();
  });
});
