import { describe, expect, it } from "vitest";
import { sift, type SiftOptions } from "../../../trainer/batch/sift.ts";
import type { RolloutRecord } from "../../../trainer/records.ts";

const options: SiftOptions = {
  credit: { type: "identical" },
  advantage: { type: "group-mean" },
  lineage: { base: 0, made: [1, 2, 3, 4, 5, 6, 7, 8] },
  step: 5,
  maxStaleness: 1,
};

function record(
  id: string,
  groupId: string,
  reward: number | null,
  given: Partial<RolloutRecord> = {},
  version = 5,
): RolloutRecord {
  return {
    id,
    groupId,
    taskId: null,
    reward,
    status: "finished",
    outcome: { status: 0, terminal: reward ?? 0, correctness: 0, format: 0, tools: [] },
    intermediate: [],
    calls: [call("c1", [1], [2], ["t1"], version), call("c2", [1, 2, 3], [4], [], version)],
    ...given,
  };
}

function call(
  callId: string,
  prompt: readonly number[],
  response: readonly number[],
  toolCallIds: readonly string[],
  version: number,
) {
  return {
    callId,
    role: "main",
    promptTokenIds: Int32Array.from(prompt),
    responseTokenIds: Int32Array.from(response),
    behaviourLogprobs: new Float32Array(response.length).fill(-1),
    policyVersion: version,
    trainable: true,
    toolCallIds,
    finishReason: "stop",
    startedAt: 0,
    latencyMs: 1,
  };
}

describe("sift", () => {
  it("gives each transition of a group's rollouts its advantage", () => {
    const { groups, dropped } = sift([record("a", "g", 1), record("b", "g", 0)], options);
    expect(dropped.size).toBe(0);
    expect(
      groups.map((group) => group.rollouts.map((each) => [each.record.id, [...each.advantages_T], each.staleness])),
    ).toEqual([
      [
        ["a", [0.5, 0.5], 0],
        ["b", [-0.5, -0.5], 0],
      ],
    ]);
  });

  it("drops, with the reason, what cannot train, and takes the group's mean without it", () => {
    const { groups, dropped } = sift(
      [
        record("a", "g", 1),
        record("b", "g", 0),
        record("none", "g", null),
        record("mute", "g", 0.4, { calls: [] }),
        record("old", "g", 0.4, {}, 3),
        record("stranger", "g", 0.4, {}, 99),
        record("f1", "flat", 0.5),
        record("f2", "flat", 0.5),
        record("single", "alone", 1),
      ],
      options,
    );
    expect(Object.fromEntries(dropped)).toEqual({
      no_reward: ["none"],
      no_trainable_call: ["mute"],
      stale: ["old", "stranger"],
      zero_spread: ["f1", "f2", "single"],
    });
    expect(groups).toHaveLength(1);
    expect(groups[0]?.rollouts.map((each) => each.advantages_T[0])).toEqual([0.5, -0.5]);
  });

  it("punishes the answers of a transition that were too long, where the credit says so", () => {
    const overlong: SiftOptions = {
      ...options,
      credit: { type: "identical", overlong: { maxTokens: 4, cacheTokens: 2 } },
    };
    const long = { calls: [call("c1", [1], [2, 2, 2], [], 5), call("c2", [1, 2, 2, 2, 3], [4], [], 5)] };
    const { groups } = sift([record("a", "g", 1, long), record("b", "g", 0)], overlong);
    // Credits [1 − 1/2, 1] and [0, 0]: means 0.75 and 0, the group's 0.375.
    expect(groups[0]?.rollouts.map((each) => [...each.advantages_T])).toEqual([
      [0.125, 0.625],
      [-0.375, -0.375],
    ]);
  });

  it("trains on the calls of selected roles alone: the frozen one takes no share of a discounted return", () => {
    const discounted: SiftOptions = { ...options, credit: { type: "discounted", gamma: 0.5 }, roles: ["main"] };
    // The checker's call is older than the bound too, which is no matter: nothing is trained on it.
    const checked = [
      call("c1", [1], [2], [], 5),
      { ...call("c2", [9], [9], [], 1), role: "checker" },
      call("c3", [8], [4], [], 5),
    ];
    const { groups, dropped } = sift(
      [
        record("a", "g", 1, { calls: checked }),
        record("b", "g", 0),
        record("none", "g", 1, { calls: checked.slice(1, 2) }),
      ],
      discounted,
    );
    // Credits [0.5, 1] and [0, 0]: means 0.75 and 0, the group's 0.375.
    expect(groups[0]?.rollouts.map((each) => [...each.advantages_T])).toEqual([
      [0.125, 0.625],
      [-0.375, -0.375],
    ]);
    expect(groups[0]?.rollouts[0]?.trajectory.transitions.map((each) => each.callId)).toEqual(["c1", "c3"]);
    expect(groups[0]?.rollouts[0]?.trajectory.skipped).toEqual({});
    expect(Object.fromEntries(dropped)).toEqual({ no_trainable_call: ["none"] });
  });

  it("measures staleness from the oldest call of a rollout", () => {
    const mixed = { calls: [call("c1", [1], [2], [], 4), call("c2", [1, 2, 3], [4], [], 5)] };
    const { groups } = sift([record("a", "g", 1, mixed), record("b", "g", 0)], options);
    expect(groups[0]?.rollouts.map((each) => each.staleness)).toEqual([1, 0]);
  });

  it("joins intermediate rewards to the call that made the tool call", () => {
    const air: SiftOptions = { ...options, credit: { type: "air", gamma: 1, terminalWeight: 1 } };
    const paid = record("a", "g", 1, { intermediate: [{ toolCallId: "t1", callId: null, value: 0.3 }] });
    const late = record("b", "g", 0, { intermediate: [{ toolCallId: "unknown", callId: null, value: 0.3 }] });
    const { groups } = sift([paid, late], air);
    // Credits: a [0.3 + 1, 1], b [0.3 + 0, 0.3 + 0], whose means are 1.15 and 0.3, and the group's 0.725.
    const [a, b] = groups[0]?.rollouts ?? [];
    expect([...(a?.advantages_T ?? [])].map((each) => each.toFixed(6))).toEqual(["0.575000", "0.275000"]);
    expect([...(b?.advantages_T ?? [])].map((each) => each.toFixed(6))).toEqual(["-0.425000", "-0.425000"]);
  });
});
