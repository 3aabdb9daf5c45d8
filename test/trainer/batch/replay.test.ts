import { describe, expect, it } from "vitest";
import { chooseReplay, recall, remember, replayMetrics, type ReplayState } from "../../../trainer/batch/replay.ts";
import { sift, type SiftedGroup } from "../../../trainer/batch/sift.ts";
import type { RolloutRecord } from "../../../trainer/records.ts";

const LINEAGE = { base: 0, made: [1, 2, 3] };

/** A rollout of one call by a version. */
function record(id: string, groupId: string, reward: number, version = 0): RolloutRecord {
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
        responseTokenIds: Int32Array.of(2, 3),
        behaviourLogprobs: Float32Array.of(-1, -2),
        policyVersion: version,
        trainable: true,
        toolCallIds: [],
        finishReason: "stop",
        startedAt: 0,
        latencyMs: 1,
      },
    ],
  };
}

/** A group whose two advantages are ± half the gap between its rewards. */
function group(name: string, gap: number, step = 0): SiftedGroup {
  const { groups } = sift([record(`${name}0`, name, gap), record(`${name}1`, name, 0)], {
    ...{ credit: { type: "identical" }, advantage: { type: "group-mean" }, lineage: LINEAGE },
    ...{ step, maxStaleness: 16 },
  });
  const [only] = groups;
  if (only === undefined) throw new Error("the group has no spread");
  return only;
}

/** What a run remembers after batches of one group each, the n-th of step n. */
function rememberAll(groups: readonly SiftedGroup[], count: number): ReplayState {
  return groups.reduce<ReplayState>(
    (state, each, step) => remember(state, { batchId: `ba_${step}`, groups: [each], replayed: [] }, { step, count }),
    [],
  );
}

const names = (state: ReplayState): string[] => state.map((each) => each.groupId);

describe("what is chosen", () => {
  it("is the greatest advantage, halved for two steps of age and for each use", () => {
    // Advantages 0.5 at age 3, 0.25 at age 2, 0.2 at age 1: 0.177, 0.125, 0.141.
    const state = rememberAll([group("a", 1), group("b", 0.5), group("c", 0.4)], 3);
    expect(names(chooseReplay(state, 3, 3))).toEqual(["a", "c", "b"]);
    const used = remember(
      state,
      { batchId: "ba_3", groups: [], replayed: chooseReplay(state, 3, 1) },
      { step: 3, count: 3 },
    );
    // Of "a" there is half of 0.5/4 left.
    expect(names(chooseReplay(used, 4, 3))).toEqual(["c", "b", "a"]);
    expect(used.find((each) => each.groupId === "a")?.uses).toBe(1);
  });

  it("does not depend on the order in which groups were kept", () => {
    const state = rememberAll([group("a", 1), group("b", 1), group("c", 1)], 3);
    expect(names(chooseReplay(state.toReversed(), 3, 2))).toEqual(names(chooseReplay(state, 3, 2)));
  });

  it("is nothing without a count, and nothing is kept then", () => {
    expect(chooseReplay(rememberAll([group("a", 1)], 1), 1, 0)).toEqual([]);
    expect(rememberAll([group("a", 1)], 0)).toEqual([]);
  });
});

describe("what is kept", () => {
  it("is forgotten when it is too old", () => {
    const groups = Array.from({ length: 10 }, (_, nth) => group(`g${nth}`, 1));
    expect(names(rememberAll(groups, 4)).toSorted()).toEqual(
      ["g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9"].toSorted(),
    );
  });

  it("is bounded: eight for each that a step replays, the best of them", () => {
    const groups = Array.from({ length: 20 }, (_, nth) => group(`g${String(nth).padStart(2, "0")}`, (nth + 1) / 20));
    const state = remember([], { batchId: "ba_0", groups, replayed: [] }, { step: 0, count: 1 });
    expect(names(state)).toEqual(["g19", "g18", "g17", "g16", "g15", "g14", "g13", "g12"]);
  });

  it("survives JSON as it is", () => {
    const state = rememberAll([group("a", 1 / 3)], 1);
    expect(JSON.parse(JSON.stringify(state))).toEqual(state);
  });
});

describe("recalled groups", () => {
  const state = rememberAll([group("a", 1), group("b", 0.5)], 2);
  const inStore = new Map([
    ["ba_0", [record("a0", "a", 1), record("a1", "a", 0)]],
    ["ba_1", [record("b0", "b", 0.5, 1), record("b1", "b", 0, 1)]],
  ]);
  const reader = (rows: ReadonlyMap<string, RolloutRecord[]> = inStore) => ({
    batchRollouts: async (id: string) => rows.get(id) ?? [],
  });

  it("have the advantages of their own step, and their age", async () => {
    const groups = await recall(chooseReplay(state, 3, 2), reader(), { lineage: LINEAGE, step: 3 });
    expect(
      groups.flatMap(({ rollouts }) => rollouts.map((each) => [each.record.id, ...each.advantages_T, each.staleness])),
    ).toEqual([
      ["a0", 0.5, 3],
      ["a1", -0.5, 3],
      ["b0", 0.25, 2],
      ["b1", -0.25, 2],
    ]);
    expect(replayMetrics(groups)).toEqual({
      replayed_groups: 2,
      replayed_rollouts: 4,
      replayed_staleness_mean: 2.5,
    });
  });

  it("lack a rollout that was deleted, or whose tokens were", async () => {
    const [a1] = [record("a1", "a", 0)];
    const bare = { ...a1, calls: a1.calls.map((call) => ({ ...call, promptTokenIds: null })) };
    const left = new Map([
      ["ba_0", [bare]],
      ["ba_1", [record("b1", "b", 0, 1)]],
    ]);
    const groups = await recall(chooseReplay(state, 3, 2), reader(left), { lineage: LINEAGE, step: 3 });
    expect(groups.map(({ rollouts }) => rollouts.map((each) => each.record.id))).toEqual([["b1"]]);
  });
});
