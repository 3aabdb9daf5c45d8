import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { drain } from "../../trainer/drain.ts";
import { trainRun } from "../../trainer/loop.ts";
import { World } from "./support/world.ts";

let dir: string;
let world: World;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-drain-"));
  world = await new World(dir).prepare();
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** A run of groups of three that is stopped after its first step, with the next batch's rollouts under way. */
async function stopped(): Promise<void> {
  const controller = new AbortController();
  const deps = world.deps(world.config({ ...RUN }), controller.signal);
  const emit = (event: Parameters<typeof deps.emit>[0]): void => {
    deps.emit(event);
    if (event.event === "step") controller.abort(new Error("stop"));
    if (event.event === "step") world.statusOf = () => "queued";
  };
  world.statusOf = ({ at }) => (at < 6 ? "finished" : "queued");
  await expect(trainRun({ ...deps, emit })).rejects.toThrow("stop");
}

const RUN = { steps: 2, groupSize: 3, evalTasks: 0, whenStale: "discard" } as const;
const open = () => [...world.rollouts.values()].filter((each) => each.status === "queued");

it("does nothing where no time is given: the next start finds the rollouts", async () => {
  await stopped();
  const before = open().length;
  expect(before).toBeGreaterThan(0);
  expect(await drain(world.deps(world.config(RUN)))).toBe(0);
  expect(open()).toHaveLength(before);
});

it("waits for the rollouts under way, and drops none that ends in time", async () => {
  await stopped();
  world.statusOf = () => "finished";
  expect(await drain(world.deps(world.config({ ...RUN, drainSeconds: 5 })))).toBe(0);
  expect(open()).toEqual([]);
  expect([...world.rollouts.values()].map((each) => each.disposition)).not.toContain("dropped");
});

it("drops with a reason what is still open when the time is over, keeps what has ended, and the run goes on", async () => {
  await stopped();
  // Two of each group have ended, the third never will.
  world.statusOf = ({ at }) => (at % 3 === 2 ? "queued" : "finished");
  world.rewardOf = ({ at }) => (at % 3 === 0 ? 1 : 0);
  const waiting = open().length;
  const dropped = await drain(world.deps(world.config({ ...RUN, drainSeconds: 1 })));
  expect(dropped).toBe(waiting / 3);
  expect([...world.rollouts.values()].filter((each) => each.dropReason === "run_ended")).toHaveLength(dropped);
  world.statusOf = () => "finished";
  await trainRun(world.deps(world.config(RUN)));
  expect(world.routeVersion).toBe(2);
  expect([...world.rollouts.values()].filter((each) => each.disposition === "trained")).toHaveLength(6 + 4);
});
