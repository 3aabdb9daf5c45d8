import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { trainRun, type LoopDeps } from "../../trainer/loop.ts";
import { readNewestCheckpoint } from "../../trainer/release/checkpoint.ts";
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

  it("serves another tenant's versions under names, and from folders, that say whose they are", async () => {
    await trainRun(world.deps(world.config({ tenant: "acme" })));
    expectWholeHistory(world, 3);
    expect([...world.loaded].toSorted()).toEqual(["acme~toy@0", "acme~toy@2", "acme~toy@3"]);
    expect(await readdir(join(dir, "runs"))).toEqual(["acme~r1"]);
    // The base's own folder is where the store has it.
    expect((await readdir(join(dir, "policies"))).toSorted()).toEqual(["acme~toy", "toy"]);
    const manifest: unknown = JSON.parse(await readFile(join(dir, "policies/acme~toy/3/manifest.json"), "utf8"));
    expect(manifest).toMatchObject({ name: "acme~toy@3" });
    // The edge is asked for its tenant's, by the token's word.
    expect(new Set([...world.rollouts.values()].map(({ pin }) => pin))).toEqual(new Set([null, "toy@0", "toy@3"]));
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

  it.each([0, 1, 4])(
    "has (K + 1) batches in flight at most, and trains nothing older than K = %i",
    async (maxStaleness) => {
      const groups = 3;
      const config = world.config({ steps: 12, groups, evalTasks: 0, maxStaleness });
      const inFlight: number[] = [];
      const deps = world.deps(config);
      const createRollouts: LoopDeps["edge"]["createRollouts"] = async (rollouts) => {
        const created = await deps.edge.createRollouts(rollouts);
        const open = [...world.rollouts.values()].filter((each) => each.disposition === null);
        inFlight.push(new Set(open.map((each) => each.groupId)).size);
        return created;
      };
      await trainRun({ ...deps, edge: { ...deps.edge, createRollouts } });
      expect(Math.max(...inFlight)).toBe((maxStaleness + 1) * groups);
      // The line is full at every step that is not near the end.
      expect(inFlight.slice(0, 12 - maxStaleness)).toEqual(
        Array.from({ length: 12 - maxStaleness }, () => (maxStaleness + 1) * groups),
      );
      const staleness = stepEvents(world).map((event) => event.metrics["staleness_max"] ?? NaN);
      expect(Math.max(...staleness)).toBe(maxStaleness);
      expect([...world.rollouts.values()].filter((each) => each.disposition !== "trained")).toEqual([]);
    },
  );

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
    await expect(trainRun(world.deps(world.config({ evalTasks: 0, maxStaleness: 1 })))).rejects.toMatchObject({
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

  it("imitates and prefers without log-probabilities, and says so to algorithms that weigh samples by them", async () => {
    world.givesLogprobs = false;
    await trainRun(world.deps(world.config({ algorithm: "sft", steps: 2, evalTasks: 0 })));
    expect(stepEvents(world).map(({ metrics }) => [metrics["rollouts"], metrics["calls_skipped"]])).toEqual([
      [4, 0],
      [4, 0],
    ]);
    expect(stepEvents(world)[0]?.metrics).not.toHaveProperty("mismatch_kl");
    expect(world.routeVersion).toBe(2);
    world.batches.clear();
    await expect(trainRun(world.deps(world.config({ run: "r2", algorithm: "grpo" })))).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining(
        "none of 4 rollouts has a call with log-probabilities, which --algorithm grpo weighs its samples by",
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

  it("takes turns with another run of its policy: numbers go on from the highest, and each run on from its own", async () => {
    const turn = (run: string, steps: number) =>
      trainRun(world.deps(world.config({ run, steps, evalTasks: 0, sync: true })));
    await turn("r1", 2);
    await turn("r2", 2);
    expect(world.routeVersion).toBe(4);
    await turn("r1", 4);
    expect(world.routeVersion).toBe(6);
    await turn("r2", 3);
    expect([...world.versions.entries()].map(([version, { parent }]) => [version, parent])).toEqual([
      [0, null],
      [1, 0],
      [2, 1],
      [3, 0],
      [4, 3],
      [5, 2],
      [6, 5],
      [7, 4],
    ]);
    expect(await Promise.all([4, 6, 7].map(stepsIn))).toEqual([2, 4, 3]);
    // Each turn began with its own version routed, so that no sample was another run's.
    expect([...world.rollouts.values()].filter((each) => each.dropReason === "stale")).toEqual([]);
    const newest = await readNewestCheckpoint(join(dir, "runs/r1/checkpoints"));
    expect(newest?.state.rewards.map(({ version }) => version)).toEqual([0, 1, 2, 5]);
  });

  it("takes turns also with a run that has not made its first step, and with one that was killed while publishing", async () => {
    const config = (run: string, steps: number) => world.config({ run, steps, evalTasks: 0 });
    const killed = new AbortController();
    killed.abort(new Error("stop"));
    await expect(trainRun(world.deps(config("r1", 2), killed.signal))).rejects.toThrow("stop");
    await trainRun(world.deps(config("r2", 1)));
    expect(world.routeVersion).toBe(1);
    // Killed with its second step's checkpoint on disk, before that has a number in the store.
    const deps = world.deps(config("r1", 2));
    let marks = 0;
    const markTrained: LoopDeps["edge"]["markTrained"] = async (batchId, body) => {
      if (++marks === 2) throw new Killed();
      return deps.edge.markTrained(batchId, body);
    };
    await expect(trainRun({ ...deps, edge: { ...deps.edge, markTrained } })).rejects.toThrow(Killed);
    await trainRun(world.deps(config("r2", 2)));
    await trainRun(world.deps(config("r1", 2)));
    expect(
      [...world.versions.entries()]
        .map(([version, { parent }]) => [version, parent])
        .toSorted(([a], [b]) => Number(a) - Number(b)),
    ).toEqual([
      [0, null],
      [1, 0],
      [2, 0],
      // Exported by the killed trainer under the number that it had found free.
      [3, 2],
      [4, 1],
    ]);
    expect(await Promise.all([2, 3, 4].map(stepsIn))).toEqual([1, 2, 2]);
    expect(world.routeVersion).toBe(3);
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

  it("finishes and publishes the step that a stop finds under way, and then ends quietly", async () => {
    const controller = new AbortController();
    const deps = world.deps(world.config({ steps: 3, evalTasks: 0, keepVersions: 1 }), controller.signal);
    // As patience.ts makes them: nothing is read for a run that is to end.
    const records = new Proxy(deps.records, {
      get: (target, name, receiver) => {
        controller.signal.throwIfAborted();
        return Reflect.get(target, name, receiver);
      },
    });
    const openEngine: LoopDeps["openEngine"] = async (from) => {
      const engine = await deps.openEngine(from);
      return {
        ...engine,
        info: engine.info,
        score: (samples) => engine.score(samples),
        step: (options) => engine.step(options),
        backward: (samples, cotangents) => {
          controller.abort(new Error("stop"));
          return engine.backward(samples, cotangents);
        },
      };
    };
    await expect(trainRun({ ...deps, records, openEngine })).rejects.toThrow("stop");
    expect(stepEvents(world).map(({ step, version }) => [step, version])).toEqual([[1, "toy@1"]]);
    expect(world.routeVersion).toBe(1);
    expect((await readNewestCheckpoint(join(dir, "runs/r1/checkpoints")))?.state.step).toBe(1);
    await trainRun(world.deps(world.config({ steps: 3, evalTasks: 0 })));
    expectWholeHistory(world, 3);
  });

  it("retires a version before its folder goes; killed in between, the next step removes what is left", async () => {
    const config = world.config({ steps: 8, evalTasks: 0, keepVersions: 1, maxStaleness: 1 });
    const deps = world.deps(config);
    const folders = async () => (await readdir(join(dir, "policies/toy"))).filter((name) => name !== "0").toSorted();
    const retireVersions: LoopDeps["edge"]["retireVersions"] = async (policy, versions) => {
      const retired = await deps.edge.retireVersions(policy, versions);
      if (versions.includes(2)) throw new Killed();
      return retired;
    };
    await expect(trainRun({ ...deps, edge: { ...deps.edge, retireVersions } })).rejects.toThrow(Killed);
    expect(world.retired.has(2)).toBe(true);
    expect(await folders()).toContain("2");
    await trainRun(world.deps(config));
    expect(await folders()).not.toContain("2");
    for (const name of await folders()) expect(world.retired).not.toContain(Number(name));
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

describe("trainRun with replay", () => {
  const config = { steps: 3, evalTasks: 0, replay: 1, maxStaleness: 0 } as const;

  it("trains on earlier groups again, says so, and leaves each rollout in the one batch that it was trained by", async () => {
    await trainRun(world.deps(world.config(config)));
    const metrics = stepEvents(world).map((event) => event.metrics);
    expect(metrics.map((each) => [each["groups"], each["rollouts"], each["rows"]])).toEqual([
      [2, 4, 4],
      [2, 4, 6],
      [2, 4, 6],
    ]);
    expect(metrics.map((each) => [each["replayed_groups"], each["replayed_rollouts"]])).toEqual([
      [0, 0],
      [1, 2],
      [1, 2],
    ]);
    expect(metrics.map((each) => each["replayed_staleness_mean"])).toEqual([0, 1, 1]);
    // The batch itself is fresh.
    expect(metrics.map((each) => each["staleness_max"])).toEqual([0, 0, 0]);
    expectWholeHistory(world, 3);
  });

  it("says nothing of it where it is off", async () => {
    await trainRun(world.deps(world.config({ ...config, replay: 0 })));
    expect(Object.keys(stepEvents(world)[2]?.metrics ?? {}).filter((name) => name.startsWith("replayed"))).toEqual([]);
    expect((await readNewestCheckpoint(join(dir, "runs/r1/checkpoints")))?.state.replay).toEqual([]);
  });

  it(
    "killed at any one thing it asks for, it ends with the same weights and memory",
    { timeout: 120_000 },
    async () => {
      const outcome = async (home: string) => ({
        weights: await readFile(join(home, "policies/toy/3/adapter_model.safetensors"), "utf8"),
        replay: (await readNewestCheckpoint(join(home, "runs/r1/checkpoints")))?.state.replay,
      });
      await trainRun(world.deps(world.config(config)));
      const whole = await outcome(dir);
      expect(whole.replay?.length).toBe(6);
      const total = world.asked.length;
      for (let at = 0; at < total; at += 1) {
        const home = join(dir, `kill-${at}`);
        const struck = await new World(home).prepare();
        struck.fuse = at;
        struck.failAfterEffect = at % 2 === 1;
        await expect(trainRun(struck.deps(struck.config(config)))).rejects.toThrow(Killed);
        await trainRun(struck.deps(struck.config(config)));
        expect({ killedAt: struck.asked[at], ...(await outcome(home)) }).toEqual({
          killedAt: struck.asked[at],
          ...whole,
        });
      }
    },
  );
});

describe("trainRun on live traffic", () => {
  const live = { live: true, from: "routed", groups: 4, groupSize: 1, lone: "ema", evalTasks: 0 } as const;

  /** Users come while the trainer waits: two at each look, every other one content. */
  function withUsers(deps: LoopDeps, of: World, reward = (nth: number) => (nth % 4 < 2 ? 1 : 0)): LoopDeps {
    let nth = 0;
    return {
      ...deps,
      pause: async (ms) => {
        for (let user = 0; user < 2; user += 1) of.visit(reward(nth++));
        await deps.pause(ms);
      },
    };
  }

  it("begins at the routed version, with its weights, and never routes the base again", async () => {
    await trainRun(world.deps(world.config({ steps: 2, evalTasks: 0 })));
    world.batches.clear();
    world.asked.length = 0;
    const routes: number[] = [];
    const deps = withUsers(world.deps(world.config({ ...live, run: "r2", steps: 2 })), world);
    const routePolicy: LoopDeps["edge"]["routePolicy"] = (name, version) => {
      routes.push(version);
      return deps.edge.routePolicy(name, version);
    };
    await trainRun({ ...deps, edge: { ...deps.edge, routePolicy } });
    expect(routes).toEqual([3, 4]);
    expect([...world.versions].map(([version, { parent }]) => [version, parent]).slice(3)).toEqual([
      [3, 2],
      [4, 3],
    ]);
    // Two steps of the first run are in the weights that the second went on from.
    expect(await stepsIn(4)).toBe(4);
    expect(world.asked.filter((name) => name === "edge.createRollouts")).toEqual([]);
  });

  it("keeps what it began with as the reference of a KL term, also when it is resumed after others were routed", async () => {
    await trainRun(world.deps(world.config({ steps: 2, evalTasks: 0 })));
    world.batches.clear();
    const config = world.config({ ...live, run: "r2", klCoefficient: 0.1 });
    const start = async (steps: number) => {
      const opened: (string | undefined)[] = [];
      const deps = withUsers(world.deps({ ...config, steps }), world);
      const openEngine: LoopDeps["openEngine"] = (from) => {
        opened.push(from.adapterDir?.slice(dir.length));
        return deps.openEngine(from);
      };
      await trainRun({ ...deps, openEngine });
      return opened;
    };
    expect(await start(1)).toEqual(["/policies/toy/2", "/policies/toy/2"]);
    expect(world.routeVersion).toBe(3);
    // The engine's weights are its checkpoint's.
    expect(await start(2)).toEqual([undefined, "/policies/toy/2"]);
    expect(await stepsIn(4)).toBe(4);
  });

  it("refuses to begin at an adapter of another size, before it has changed anything", async () => {
    await trainRun(world.deps(world.config({ steps: 1, evalTasks: 0 })));
    const asked = world.asked.length;
    const wrong = world.config({ ...live, run: "r2", loraRank: 8, loraAlpha: 16 });
    await expect(trainRun(world.deps(wrong))).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message:
        "toy@1 is an adapter of rank 16 and alpha 32, and rank 8 and alpha 16 were asked for; give --lora-rank 16 --lora-alpha 32",
    });
    expect(world.asked.slice(asked)).toEqual(["records.policy"]);
    expect(world.routeVersion).toBe(1);
  });

  it("waits for traffic without a limit, says how much has come, and trains each session once", async () => {
    const config = world.config({ ...live, steps: 3, maxStaleness: 0, wedgeMinutes: 0.001 });
    await trainRun(withUsers(world.deps(config), world));
    expect(world.events).toContainEqual({
      event: "progress",
      step: 1,
      doing: "live rollouts with a reward",
      done: 2,
      total: 4,
    });
    const trained = [...world.rollouts.values()].filter((each) => each.disposition === "trained");
    expect(trained).toHaveLength(3 * 4);
    expect(new Set(trained.map((each) => each.batch)).size).toBe(3);
    expect(world.routeVersion).toBe(3);
  });

  it("compares the first batch with itself and the next ones with the average of those before", async () => {
    // After the first batch, whose mean is 0.5, everybody is content: an advantage of 0.5 for each.
    const config = world.config({ ...live, steps: 2 });
    await trainRun(withUsers(world.deps(config), world, (nth) => (nth < 2 || nth > 3 ? 1 : 0)));
    const [first, second] = stepEvents(world);
    // Credit minus the mean of the other three: 1 − 1/3 and 0 − 2/3.
    expect(first?.metrics["advantage_spread"]).toBeCloseTo(2 / 3, 12);
    expect(second?.metrics["advantage_spread"]).toBeCloseTo(0.5, 12);
    const kept = await readNewestCheckpoint(join(dir, "runs/r1/checkpoints"));
    expect(kept?.state.baseline.mean).toBeCloseTo((1 + 1 + 0 + 0 + 1 + 1 + 1 + 1) / 8, 12);
    expect(kept?.state.baseline.rollouts).toBe(8);
  });

  it("goes on waiting where all earned what was expected, and drops them with the reason", async () => {
    const config = world.config({ ...live, steps: 1 });
    await trainRun(withUsers(world.deps(config), world, (nth) => (nth < 4 || nth % 2 === 0 ? 1 : 0)));
    const [step] = stepEvents(world);
    expect(step?.metrics["groups"]).toBe(4);
    expect(step?.metrics["zero_spread_fraction"]).toBe(0.5);
    const dropped = [...world.rollouts.values()].filter((each) => each.dropReason === "zero_spread");
    expect(dropped.map((each) => each.at)).toEqual([0, 1, 2, 3]);
  });

  it("takes windows of several sessions, and compares a session with its window", async () => {
    const config = world.config({ ...live, groups: 2, groupSize: 4, steps: 1 });
    await trainRun(withUsers(world.deps(config), world));
    expect(stepEvents(world)[0]?.metrics).toMatchObject({ groups: 2, rollouts: 8 });
    const kept = await readNewestCheckpoint(join(dir, "runs/r1/checkpoints"));
    expect(kept?.state.baseline.rollouts).toBe(0);
  });

  it("says so when traffic goes to a version that it cannot learn from", async () => {
    await trainRun(world.deps(world.config({ steps: 2, evalTasks: 0 })));
    world.batches.clear();
    const deps = withUsers(world.deps(world.config({ ...live, run: "r2", steps: 1 })), world);
    const controller = new AbortController();
    const stuck = trainRun({
      ...deps,
      signal: controller.signal,
      emit: (event) => {
        deps.emit(event);
        if (event.event === "run") world.routeVersion = 1;
        if (event.event === "warning") controller.abort(new Error("stop"));
      },
      pause: async (ms) => {
        controller.signal.throwIfAborted();
        await deps.pause(ms);
      },
    });
    await expect(stuck).rejects.toThrow("stop");
    expect(world.events).toContainEqual({
      event: "warning",
      message:
        "calls go to toy@1, and this run can train on those of toy@2 alone; route one of them, or begin a new run",
    });
  });

  it(
    "killed at any one thing it asks for, it ends with the same weights and baseline",
    { timeout: 120_000 },
    async () => {
      const config = { ...live, steps: 2 };
      // All users come before: what a batch takes does not depend on when the trainer died.
      const come = (of: World): void => {
        for (let nth = 0; nth < 10; nth += 1) of.visit(nth % 3 === 0 ? 1 : 0);
      };
      const outcome = async (home: string) => ({
        weights: await readFile(join(home, "policies/toy/2/adapter_model.safetensors"), "utf8"),
        baseline: (await readNewestCheckpoint(join(home, "runs/r1/checkpoints")))?.state.baseline,
      });
      const users = (of: World) => withUsers(of.deps(of.config(config)), of);
      come(world);
      await trainRun(users(world));
      const whole = await outcome(dir);
      const total = world.asked.length;
      expect(total).toBeGreaterThan(25);
      for (let at = 0; at < total; at += 1) {
        const home = join(dir, `kill-${at}`);
        const struck = await new World(home).prepare();
        come(struck);
        struck.fuse = at;
        struck.failAfterEffect = at % 2 === 1;
        await expect(trainRun(users(struck))).rejects.toThrow(Killed);
        await trainRun(users(struck));
        expect({ killedAt: struck.asked[at], ...(await outcome(home)) }).toEqual({
          killedAt: struck.asked[at],
          ...whole,
        });
      }
    },
  );
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
