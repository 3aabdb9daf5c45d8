import { describe, expect, it } from "vitest";
import type { RolloutStatus } from "#shared/words.ts";
import { parseFlags, type TrainerConfig } from "../../trainer/config.ts";
import { evaluate, summarise, type EvaluateDeps } from "../../trainer/evaluate.ts";
import type { OutcomeRecord } from "../../trainer/records.ts";

function outcome(id: number, given: Partial<OutcomeRecord> & { readonly first?: string } = {}): OutcomeRecord {
  const { first = "memory", ...rest } = given;
  const correctness = id % 2;
  return {
    id: `ro_${id}`,
    status: "finished",
    reward: correctness,
    outcome: { status: 0, terminal: correctness, correctness, format: 1, tools: [first] },
    ...rest,
  };
}

describe("summarise", () => {
  it("takes means over what finished and counts the failed apart", () => {
    const outcomes = [
      outcome(0),
      outcome(1),
      outcome(2, { first: "search" }),
      outcome(3, { outcome: null }),
      outcome(4, { status: "failed", reward: null, outcome: null }),
      outcome(5, { status: "cancelled", reward: null }),
    ];
    expect(summarise(outcomes, "memory")).toMatchObject({
      reward: { mean: 0.5 },
      first_tool: { mean: 0.5 },
      correct: { mean: 0.25 },
      n: 4,
      failed: 2,
    });
  });
});

/** A world in which rollouts end a few at each pause. */
function world(config: TrainerConfig, { tasks = 3, perPause = 2 } = {}) {
  const created: { id: string; taskId: string; pin: string | null | undefined; mode: string }[] = [];
  const progress: number[] = [];
  let ended = 0;
  let clock = 0;
  const deps: EvaluateDeps = {
    config,
    edge: {
      createRollouts: async (rollouts) => {
        created.push(...rollouts.map(({ id, taskId, pin, mode }) => ({ id, taskId, pin, mode })));
        return { ids: [] };
      },
    },
    records: {
      taskIds: async () => Array.from({ length: tasks }, (_, at) => `val-${at}`),
      countStatuses: async (ids) => {
        const done = Math.min(ended, ids.length);
        const counts: Partial<Record<RolloutStatus, number>> = { finished: done, running: ids.length - done };
        return counts;
      },
      outcomes: async (ids) => ids.map((_, at) => outcome(at)),
    },
    pause: async (ms) => {
      clock += ms;
      ended += perPause;
    },
    now: () => clock,
    onProgress: (done) => void progress.push(done),
  };
  return { deps, created, progress };
}

describe("evaluate", () => {
  it("runs every task pinned to the version, again from the first where there are fewer, and tells its progress", async () => {
    const { deps, created, progress } = world(parseFlags(["--run", "r", "--eval-tasks", "5", "--poll-ms", "100"]));
    const result = await evaluate(deps, "after", 7);
    expect(created.map(({ taskId }) => taskId)).toEqual(["val-0", "val-1", "val-2", "val-0", "val-1"]);
    expect(created.every(({ pin, mode }) => pin === "flight@7" && mode === "val")).toBe(true);
    expect(new Set(created.map(({ id }) => id)).size).toBe(5);
    expect(progress).toEqual([0, 2, 4, 5]);
    expect(result).toMatchObject({ version: "flight@7", n: 5, failed: 0, wall_s: 0.3 });
  });

  it("asks for nothing new when it is repeated", async () => {
    const config = parseFlags(["--run", "r", "--eval-tasks", "2"]);
    const [first, again] = [world(config), world(config)];
    await evaluate(first.deps, "before", 0);
    await evaluate(again.deps, "before", 0);
    expect(again.created).toEqual(first.created);
  });

  it("says what is missing or stuck", async () => {
    const config = parseFlags(["--run", "r", "--eval-tasks", "4", "--wedge-minutes", "0.01", "--poll-ms", "100"]);
    await expect(evaluate(world(config, { tasks: 0 }).deps, "before", 0)).rejects.toThrow(
      "agent flight has no val tasks in the store",
    );
    await expect(evaluate(world(config, { perPause: 0 }).deps, "before", 0)).rejects.toMatchObject({
      code: "ERR_TIMEOUT",
      message: expect.stringContaining("has ended 0 of 4 rollouts and none for 0.01 minutes"),
    });
  });
});
