import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { trainRun } from "../../trainer/loop.ts";
import { Killed, World } from "./support/world.ts";

/** A run's journal, and what an alarm does to a run. */

let dir: string;
let world: World;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-pause-"));
  world = await new World(dir).prepare();
  // Rewards fall from their best to nothing: with 40 rollouts a step that is no chance.
  world.rewardOf = ({ at, version }) => ((version ?? 0) < 3 ? Number(at % 10 !== 0) : Number(at % 10 === 0));
});
afterEach(async () => {
  await rm(dir, { recursive: true });
});

/** The steps of a run's journal. */
async function journalOf(stateDir: string): Promise<unknown[]> {
  const text = await readFile(join(stateDir, "runs/r1/metrics.jsonl"), "utf8");
  return text
    .trimEnd()
    .split("\n")
    .map((line): unknown => JSON.parse(line).step);
}

const settings = { steps: 9, groups: 4, groupSize: 10, evalTasks: 0, sync: true };
const warnings = (): string[] =>
  world.events.flatMap((event) => (event.event === "warning" ? [event.message.split(":")[0] ?? ""] : []));

it("warns of an alarm once, and trains on", async () => {
  expect(await trainRun(world.deps(world.config(settings)))).toBe("finished");
  expect(warnings()).toEqual(["reward_collapse"]);
  expect(world.routeVersion).toBe(9);
});

it("pauses at an alarm before its version is routed, and goes on from there when it is started again", async () => {
  const config = world.config({ ...settings, pauseOnAlarm: true });
  expect(await trainRun(world.deps(config))).toBe("paused");
  const paused = world.events.at(-1);
  // Steps 1–3 are at their best, and 4–6 are the first three beside them.
  expect(paused).toEqual({
    event: "paused",
    step: 6,
    version: "toy@5",
    message:
      "paused after step 6 by reward_collapse; toy@5 goes on serving, and the step is kept; the same command goes on with the run, --new --from routed begins another at toy@5",
  });
  expect(world.routeVersion).toBe(5);
  expect(world.batches.get("ba_r1_000005")).toMatchObject({ status: "claimed" });
  expect(world.run.finishedAt).toBeNull();
  const started = world.rollouts.size;

  expect(await trainRun(world.deps(config))).toBe("finished");
  expect(world.events).toContainEqual({ event: "run", run_id: "r1", policy: "toy", steps: 9, resumed_from_step: 6 });
  expect(warnings()).toEqual(["reward_collapse"]);
  expect(world.routeVersion).toBe(9);
  expect(world.rollouts.size).toBe(started + 3 * 40);
  expect([...world.batches.values()].every((batch) => batch.status === "trained")).toBe(true);
  expect(await journalOf(dir)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

it("pauses also when it was killed before it could say so", async () => {
  const config = world.config({ ...settings, pauseOnAlarm: true });
  const deps = world.deps(config);
  const emit = (): never => {
    throw new Killed();
  };
  // Dies as it warns: after the checkpoint, before the journal.
  await expect(
    trainRun({ ...deps, emit: (event) => (event.event === "warning" ? emit() : deps.emit(event)) }),
  ).rejects.toThrow(Killed);
  expect(await journalOf(dir)).toEqual([1, 2, 3, 4, 5]);
  expect(await trainRun(world.deps(config))).toBe("paused");
  expect(world.routeVersion).toBe(5);
  expect(await trainRun(world.deps(config))).toBe("finished");
  expect(await journalOf(dir)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

it("has each step once in its journal, wherever it was killed", { timeout: 120_000 }, async () => {
  const given = { steps: 3, evalTasks: 0 };
  await trainRun(world.deps(world.config(given)));
  const total = world.asked.length;
  expect(total).toBeGreaterThan(40);
  for (let at = 4; at < total; at += 3) {
    const home = join(dir, `kill-${at}`);
    const struck = await new World(home).prepare();
    struck.rewardOf = world.rewardOf;
    struck.fuse = at;
    await expect(trainRun(struck.deps(struck.config(given)))).rejects.toThrow(Killed);
    await trainRun(struck.deps(struck.config(given)));
    expect({ at, asked: struck.asked[at], steps: await journalOf(home) }).toMatchObject({ at, steps: [1, 2, 3] });
  }
});
