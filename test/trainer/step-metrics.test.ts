import { describe, expect, it } from "vitest";
import type { Batch } from "../../trainer/batch/claim.ts";
import { sift } from "../../trainer/batch/sift.ts";
import type { LearnReport } from "../../trainer/learn.ts";
import type { RolloutRecord } from "../../trainer/records.ts";
import { bestVersion, decodeTime, sampledRewards, stepMetrics } from "../../trainer/step-metrics.ts";

function record(id: string, reward: number, first: string, given: Partial<RolloutRecord> = {}): RolloutRecord {
  return {
    id,
    groupId: "g",
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

describe("stepMetrics", () => {
  it("takes the means of outcomes over all that was claimed, also of flat groups", () => {
    const good = [record("a", 1, "memory"), record("b", 0, "search")];
    const flat = [record("c", 1, "memory", { groupId: "f" }), record("d", 1, "memory", { groupId: "f" })];
    const { groups } = sift(good, {
      credit: { type: "identical" },
      advantage: { type: "group-mean" },
      lineage: { base: 0, first: 1 },
      step: 3,
      maxStaleness: 1,
    });
    const batch: Batch = {
      batchId: "ba",
      groups,
      claimed: [...good, ...flat],
      claimedGroups: 2,
      flatGroups: 1,
      stale: 0,
    };
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
    const metrics = stepMetrics(batch, {
      report,
      watchFirstTool: "memory",
      waitSeconds: 1,
      stepSeconds: 2,
      learningRate: 1e-3,
    });
    expect(metrics).toMatchObject({
      reward_mean: 0.75,
      first_tool_rate: 0.75,
      correct_rate: 0.75,
      zero_spread_fraction: 0.5,
      groups: 1,
      rollouts: 2,
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
      seconds_train: 0.5,
      seconds_step: 2,
    });
    expect(metrics["advantage_spread"]).toBeCloseTo(Math.SQRT1_2, 12);
    expect(Object.values(metrics).every(Number.isFinite)).toBe(true);
  });
});

describe("the rewards of a run's versions", () => {
  it("are added up by the oldest call of each rollout", () => {
    const mixed = record("m", 0.5, "memory", { calls: [callAt(0, 1, 1, 2), callAt(1, 1, 1, 1)] });
    const lost = record("l", 1, "memory", { calls: [callAt(0, 1, 1, null)] });
    const rewards = sampledRewards(
      [{ version: 1, sum: 1, count: 2 }],
      [mixed, lost, record("n", 1, "memory", { calls: [callAt(0, 1, 1, 2)] })],
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
