import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { trainRun } from "../../trainer/loop.ts";
import { Killed, World } from "./support/world.ts";

let dir: string;
let world: World;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-loop-"));
  world = await new World(dir).prepare();
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const stepEvents = (of: World) => of.events.filter((event) => event.event === "step");

/** Steps of the engine that are in the exported weights of a version: every update once, in one line. */
async function stepsIn(version: number): Promise<number> {
  const kept: unknown = JSON.parse(
    await readFile(join(dir, "policies/toy", String(version), "adapter_model.safetensors"), "utf8"),
  );
  return typeof kept === "object" && kept !== null && "steps" in kept ? Number(kept.steps) : -1;
}

function expectWholeHistory(of: World, steps: number): void {
  expect([...of.batches.values()].map(({ step, status, version }) => ({ step, status, version }))).toEqual(
    Array.from({ length: steps }, (_, step) => ({ step, status: "trained", version: step + 1 })),
  );
  expect([...of.versions.entries()].map(([version, { parent }]) => [version, parent])).toEqual([
    [0, null],
    ...Array.from({ length: steps }, (_, step) => [step + 1, step]),
  ]);
  for (const rollout of of.rollouts.values()) {
    if (rollout.mode === "val") continue;
    const { id, disposition } = rollout;
    const isTrained = rollout.batch !== null && rollout.dropReason === null;
    expect({ id, disposition }).toEqual({ id, disposition: isTrained ? "trained" : "dropped" });
  }
  expect(of.routeVersion).toBe(steps);
}

describe("trainRun", () => {
  it("trains the steps asked for, evaluates before and after, and writes the summary", async () => {
    await trainRun(world.deps(world.config()));
    expectWholeHistory(world, 3);
    expect(await stepsIn(3)).toBe(3);
    expect(world.run.finishedAt).not.toBeNull();
    const summary: unknown = JSON.parse(await readFile(join(dir, "runs/r1/summary.json"), "utf8"));
    expect(summary).toMatchObject({
      task: "toy",
      steps: 3,
      eval_before: { version: "toy@0", reward: 0.5, memory_first: 1, n: 4, failed: 0 },
      eval_after: { version: "toy@3", n: 4 },
      rollouts: 4 + 4 + 12,
    });
    expect(
      world.events.map((event) => event.event).filter((name) => name !== "evaluating" && name !== "warning"),
    ).toEqual(["run", "evaluation", "step", "step", "step", "evaluation", "done"]);
  });

  it("starts no more rollouts than it can train on, and trains nothing that is older than the bound", async () => {
    await trainRun(world.deps(world.config({ steps: 5, maxStaleness: 1 })));
    const trained = [...world.rollouts.values()].filter((each) => each.mode === "train");
    expect(trained).toHaveLength(5 * 2 * 2);
    expect(trained.every((each) => each.disposition === "trained")).toBe(true);
    expect(stepEvents(world).map((event) => event.metrics["staleness_mean"])).toEqual([0, 1, 1, 1, 1]);
  });

  it("is strictly on-policy with sync", async () => {
    await trainRun(world.deps(world.config({ sync: true })));
    expect(stepEvents(world).map((event) => event.metrics["staleness_max"])).toEqual([0, 0, 0]);
    const versions = [...world.rollouts.values()].filter((each) => each.mode === "train").map((each) => each.version);
    expect(versions).toEqual([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
  });

  it("normalises advantages over the batch where the algorithm does, and keeps groups without a spread for it", async () => {
    world.rewardOf = ({ at }) => (at % 4 < 2 ? 1 : 0);
    await trainRun(world.deps(world.config({ steps: 1, evalTasks: 0, algorithm: "reinforce++" })));
    const [step] = stepEvents(world);
    // Credits of 1, 1, 0 and 0 would lose 0.5 on fresh samples; normalised they add up to nothing.
    expect(step?.metrics["loss"]).toBeCloseTo(0, 9);
    expect(step?.metrics["zero_spread_fraction"]).toBe(0);
    expect(step?.metrics["rollouts"]).toBe(4);
  });

  it("replaces groups without a spread, up to the bound, and counts them", async () => {
    // Of every four groups the first earns the same throughout.
    world.rewardOf = ({ at }) => (at % 8 < 2 ? 1 : at % 2);
    await trainRun(world.deps(world.config({ steps: 2, refillGroups: 2, evalTasks: 0 })));
    const dropped = [...world.rollouts.values()].filter((each) => each.dropReason === "zero_spread");
    expect(dropped.length).toBeGreaterThan(0);
    expect(stepEvents(world).map((event) => event.metrics["groups"])).toEqual([2, 2]);
    expect(stepEvents(world)[0]?.metrics["zero_spread_fraction"]).toBeCloseTo(1 / 3, 10);
    // Their rewards still count in the mean: (2 + 1 + 1) / 6.
    expect(stepEvents(world)[0]?.metrics["reward_mean"]).toBeCloseTo(4 / 6, 10);
  });

  it("ends with a warning, not with an error, when rewards no longer vary", async () => {
    world.rewardOf = () => 1;
    await trainRun(world.deps(world.config()));
    expect(stepEvents(world)).toHaveLength(0);
    expect(world.events).toContainEqual({
      event: "warning",
      message:
        "training ends after 0 of 3 steps: the rewards of every group are equal, so there is nothing to learn from",
    });
    expect(world.events.at(-1)?.event).toBe("done");
  });

  it("goes on past the bound on replacements for a batch's first group with a spread", async () => {
    // Each third group varies, and a batch is a single group.
    world.rewardOf = ({ at }) => (Math.floor(at / 2) % 3 === 2 ? at % 2 : 1);
    await trainRun(world.deps(world.config({ groups: 1, steps: 2, evalTasks: 0 })));
    expect(stepEvents(world).map((event) => event.metrics["zero_spread_fraction"])).toEqual([2 / 3, 2 / 3]);
  });

  it("does not count failed rollouts as zero rewards", async () => {
    world.statusOf = ({ at, mode }) => (mode === "val" && at % 4 === 3 ? "failed" : "finished");
    world.rewardOf = ({ at, mode }) => (mode === "val" ? 1 : at % 2);
    await trainRun(world.deps(world.config({ steps: 1 })));
    const evaluation = world.events.find((event) => event.event === "evaluation");
    expect(evaluation?.result).toMatchObject({ n: 3, failed: 1, reward: { mean: 1 } });
  });

  it("goes on without the group when one of its rollouts is left alone", async () => {
    world.statusOf = ({ at }) => (at === 1 ? "failed" : "finished");
    world.rewardOf = ({ at }) => at % 2;
    await trainRun(world.deps(world.config({ steps: 2, evalTasks: 0 })));
    expect([...world.rollouts.values()][0]).toMatchObject({ disposition: "dropped", dropReason: "zero_spread" });
    expectWholeHistory(world, 2);
  });

  it("says so when nothing ends for too long", async () => {
    world.statusOf = () => "queued";
    const config = world.config({ evalTasks: 0, wedgeMinutes: 0.01 });
    await expect(trainRun(world.deps(config))).rejects.toMatchObject({
      code: "ERR_TIMEOUT",
      message: expect.stringContaining("no rollout has ended for 0.01 minutes"),
    });
  });

  it("does not go on starting rollouts where all of them fail", async () => {
    world.statusOf = () => "failed";
    await expect(trainRun(world.deps(world.config({ evalTasks: 0 })))).rejects.toMatchObject({
      code: "ERR_UPSTREAM",
      message: expect.stringContaining("has lost over 8 groups, because their rollouts fail"),
    });
    expect(world.rollouts.size).toBeLessThanOrEqual(2 * (2 + 4 + 2) * 2);
  });

  it("trains on the roles that were asked for, and says which there are where nobody has such calls", async () => {
    await trainRun(world.deps(world.config({ roles: "rewriter,main", steps: 1 })));
    expect(world.routeVersion).toBe(1);
    world.batches.clear();
    await expect(trainRun(world.deps(world.config({ run: "r2", roles: "rewriter" })))).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining(
        "none of 4 rollouts has a trainable call of --roles rewriter; their calls have the roles main",
      ),
    });
  });

  it("begins a second run at the base, under the next version numbers", async () => {
    await trainRun(world.deps(world.config({ steps: 2, evalTasks: 0 })));
    Object.assign(world.run, { evalBefore: null, evalAfter: null, finishedAt: null });
    world.batches.clear();
    await trainRun(world.deps(world.config({ run: "r2", steps: 2, evalTasks: 0 })));
    expect([...world.versions.entries()].map(([version, { parent }]) => [version, parent])).toEqual([
      [0, null],
      [1, 0],
      [2, 1],
      [3, 0],
      [4, 3],
    ]);
    expect(await stepsIn(4)).toBe(2);
  });

  it("begins a second run at the base also when it is killed on the way there", async () => {
    const config = world.config({ run: "r2", steps: 1, evalTasks: 0 });
    for (let fuse = 0; fuse < 12; fuse += 1) {
      await rm(join(dir, "runs"), { recursive: true, force: true });
      world = await new World(join(dir, `second-${fuse}`)).prepare();
      await trainRun(world.deps(world.config({ steps: 1, evalTasks: 0 })));
      world.batches.clear();
      world.fuse = fuse;
      const again = { ...config, stateDir: join(dir, `second-${fuse}`) };
      await expect(trainRun(world.deps(again))).rejects.toThrow(Killed);
      await trainRun(world.deps(again));
      expect(world.versions.get(2)).toMatchObject({ parent: 0 });
      expect([...world.rollouts.values()].filter((each) => each.dropReason === "stale")).toEqual([]);
    }
  });

  it("stops at a signal and resumes where it was", async () => {
    const controller = new AbortController();
    const deps = world.deps(world.config({ steps: 3 }), controller.signal);
    const stopping = trainRun({
      ...deps,
      emit: (event) => {
        deps.emit(event);
        if (event.event === "step" && event.step === 1) controller.abort(new Error("stop"));
      },
    });
    await expect(stopping).rejects.toThrow("stop");
    expect(world.routeVersion).toBe(1);
    await trainRun(world.deps(world.config({ steps: 3 })));
    expect(world.events).toContainEqual({ event: "run", run_id: "r1", policy: "toy", steps: 3, resumed_from_step: 1 });
    expectWholeHistory(world, 3);
    expect(await stepsIn(3)).toBe(3);
  });

  it("refuses a checkpoint of another seed, an altered one, and a store that has steps without a checkpoint", async () => {
    await trainRun(world.deps(world.config({ steps: 1, evalTasks: 0 })));
    const more = { steps: 2, evalTasks: 0 };
    await expect(trainRun(world.deps(world.config({ ...more, seed: 2 })))).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining("seed 1, and 2 was asked for"),
    });
    await writeFile(join(dir, "runs/r1/checkpoints/000001/engine/weight.json"), "{}");
    await expect(trainRun(world.deps(world.config(more)))).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining("torn or was altered"),
    });
    await rm(join(dir, "runs/r1/checkpoints"), { recursive: true });
    await expect(trainRun(world.deps(world.config(more)))).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining("1 trained steps in the store and no checkpoint"),
    });
  });
});

describe("trainRun under faults", () => {
  it.each([
    ["before", false],
    ["after", true],
  ])(
    "killed %s any one thing it asks for takes effect, it ends with the same history",
    { timeout: 120_000 },
    async (_, failAfterEffect) => {
      const config = { steps: 2, evalTasks: 2, refillGroups: 1 };
      await trainRun(world.deps(world.config(config)));
      const total = world.asked.length;
      expect(total).toBeGreaterThan(40);
      for (let at = 0; at < total; at += 1) {
        const home = join(dir, `kill-${at}`);
        const struck = await new World(home).prepare();
        struck.fuse = at;
        struck.failAfterEffect = failAfterEffect;
        await expect(trainRun(struck.deps(struck.config(config)))).rejects.toThrow(Killed);
        await trainRun(struck.deps(struck.config(config)));
        expectWholeHistory(struck, 2);
        const kept: unknown = JSON.parse(
          await readFile(join(home, "policies/toy/2/adapter_model.safetensors"), "utf8"),
        );
        // The name is there for the message of a failure.
        expect({ killedAt: struck.asked[at], kept }).toMatchObject({ killedAt: struck.asked[at], kept: { steps: 2 } });
        expect(struck.run.finishedAt).not.toBeNull();
      }
    },
  );
});
