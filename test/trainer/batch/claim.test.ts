import { describe, expect, it } from "vitest";
import { NO_BASELINE, type BaselineState } from "../../../trainer/advantage/lone-baseline.ts";
import { gatherBatch, type ClaimDeps } from "../../../trainer/batch/claim.ts";
import { trainerConfigSchema, type TrainerConfig } from "../../../trainer/config.ts";
import type { RolloutRecord } from "../../../trainer/records.ts";

function record(id: string, groupId: string, reward: number): RolloutRecord {
  return {
    id,
    groupId,
    taskId: null,
    reward,
    status: "finished",
    outcome: null,
    intermediate: [],
    calls: [
      {
        callId: `ca_${id}`,
        role: "main",
        promptTokenIds: Int32Array.of(1),
        responseTokenIds: Int32Array.of(2),
        behaviourLogprobs: Float32Array.of(-1),
        policyVersion: 0,
        trainable: true,
        toolCallIds: [],
        finishReason: "stop",
        startedAt: 0,
        latencyMs: 1,
      },
    ],
  };
}

/** A batch that has claimed these rollouts already, and a store that has no others. */
async function gather(
  records: readonly RolloutRecord[],
  { baseline = NO_BASELINE, ...given }: Partial<TrainerConfig> & { readonly baseline?: BaselineState },
) {
  const dropped: [string, string][] = [];
  const refuse = async (): Promise<never> => {
    throw new Error("nothing more was to be asked for");
  };
  const left = new Map(records.map((each) => [each.id, each]));
  const deps: ClaimDeps = {
    config: trainerConfigSchema.parse({ run: "r", live: true, groups: 3, groupSize: 2, ...given }),
    edge: {
      createRollouts: refuse,
      claimBatch: refuse,
      dropRollouts: async (ids, reason) => {
        for (const id of ids) dropped.push([id, reason]);
        for (const id of ids) left.delete(id);
        return { dropped: ids.length };
      },
    },
    records: {
      waitingGroups: refuse,
      lastGroupId: refuse,
      countLive: refuse,
      policy: refuse,
      flatRollouts: async () => [],
      batchRollouts: async () => [...left.values()],
    },
    taskIds: [],
    pause: refuse,
    now: () => 0,
  };
  const batch = await gatherBatch(deps, { step: 0, lineage: { base: 0, made: [] }, baseline });
  const advantages = batch?.groups.map(({ groupId, rollouts, spread }) => ({
    groupId,
    spread,
    advantages: rollouts.map(({ advantages_T }) => advantages_T[0]),
  }));
  return { batch, advantages, dropped };
}

// A window of two sessions, and two windows of which one session each is left.
const mixed = [record("a", "g1", 1), record("b", "g1", 0), record("d", "g3", 0), record("c", "g2", 1)];

describe("a batch of groups of several and groups of one", () => {
  it("compares the lone with the average of earlier batches, the others with their group, and goes on averaging", async () => {
    const { batch, advantages, dropped } = await gather(mixed, { lone: "ema", baseline: { mean: 0.25, rollouts: 3 } });
    expect(advantages).toEqual([
      { groupId: "g1", spread: Math.SQRT1_2, advantages: [0.5, -0.5] },
      { groupId: "g2", spread: 0.75, advantages: [0.75] },
      { groupId: "g3", spread: 0.25, advantages: [-0.25] },
    ]);
    // 0.25 over three, then 1 and 0, each with its share of a plain mean.
    expect(batch?.baseline.mean).toBeCloseTo((0.25 * 3 + 1 + 0) / 5, 12);
    expect(batch?.baseline.rollouts).toBe(5);
    expect(dropped).toEqual([]);
  });

  it("compares the lone with each other alone, where the batch is their baseline", async () => {
    const { batch, advantages } = await gather(mixed, { lone: "batch", baseline: { mean: 0.25, rollouts: 3 } });
    expect(advantages?.map((each) => each.advantages)).toEqual([[0.5, -0.5], [1], [-1]]);
    expect(batch?.baseline).toEqual({ mean: 0.25, rollouts: 3 });
  });

  it("does not depend on the order in which the store tells of them", async () => {
    const one = await gather(mixed, { lone: "ema" });
    const other = await gather(mixed.toReversed(), { lone: "ema" });
    expect(other.advantages).toEqual(one.advantages);
    expect(other.batch?.baseline).toEqual(one.batch?.baseline);
  });

  it("drops the lone with the reason where nothing is said of a baseline for them", async () => {
    const more = [record("e", "g4", 1), record("f", "g4", 0), record("g", "g5", 1), record("h", "g5", 0)];
    const { advantages, dropped, batch } = await gather([...mixed, ...more], {});
    expect(advantages?.map((each) => each.groupId)).toEqual(["g1", "g4", "g5"]);
    expect(dropped).toEqual([
      ["c", "zero_spread"],
      ["d", "zero_spread"],
    ]);
    expect(batch?.flatGroups).toBe(2);
  });
});
