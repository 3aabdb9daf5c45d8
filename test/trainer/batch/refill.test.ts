import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { trainRun } from "../../../trainer/loop.ts";
import { readNewestCheckpoint } from "../../../trainer/release/checkpoint.ts";
import { Killed, World } from "../support/world.ts";

/** Whole runs whose batches are refilled (trainer/batch/claim.ts), killed on the way. */

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-refill-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const config = { steps: 2, sync: true, groups: 2, groupSize: 2, refillGroups: 1, evalTasks: 0 };

/** In a world whose first three groups have no spread, so that the first batch may not be filled up. */
async function worldAt(home: string): Promise<World> {
  const world = await new World(home).prepare();
  world.rewardOf = ({ at }) => (Math.floor(at / 2) < 3 ? 1 : at % 2);
  return world;
}

async function cameTo(world: World, home: string): Promise<object> {
  const checkpoint = await readNewestCheckpoint(join(home, "runs/r1/checkpoints"));
  return {
    rollouts: [...world.rollouts.values()].map(({ id, batch, disposition, dropReason }) => ({
      ...{ id, batch, disposition, dropReason },
    })),
    rewards: checkpoint?.state.rewards,
    weights: await readFile(join(home, "policies/toy/2/adapter_model.safetensors"), "utf8"),
  };
}

describe("a batch that was refilled", () => {
  it("is the same after a crash on the way to it: what was passed over before it is not replaced twice", async () => {
    const whole = join(dir, "whole");
    const unkilled = await worldAt(whole);
    await trainRun(unkilled.deps(unkilled.config(config)));
    const expected = await cameTo(unkilled, whole);
    // Four groups were claimed for the first batch, of which one trains; two for the second.
    expect(expected).toMatchObject({
      rollouts: [
        ...Array.from({ length: 6 }, () => ({ batch: "ba_r1_000000", dropReason: "zero_spread" })),
        ...Array.from({ length: 2 }, () => ({ batch: "ba_r1_000000", disposition: "trained" })),
        ...Array.from({ length: 4 }, () => ({ batch: "ba_r1_000001", disposition: "trained" })),
      ],
      rewards: [
        { version: 0, sum: 7, count: 8 },
        { version: 1, sum: 2, count: 4 },
      ],
    });
    // Where a batch is made; loop.test.ts kills everywhere.
    const gathering = /createRollouts|claimBatch|batchRollouts|flatRollouts|dropRollouts/;
    const places = unkilled.asked.flatMap((name, at) => (gathering.test(name) ? [at] : []));
    expect(places.length).toBeGreaterThan(12);
    for (const at of places) {
      const home = join(dir, `kill-${at}`);
      const struck = await worldAt(home);
      struck.fuse = at;
      struck.failAfterEffect = true;
      await expect(trainRun(struck.deps(struck.config(config)))).rejects.toThrow(Killed);
      await trainRun(struck.deps(struck.config(config)));
      expect({ killedAt: unkilled.asked[at], ...(await cameTo(struck, home)) }).toEqual({
        killedAt: unkilled.asked[at],
        ...expected,
      });
    }
  }, 60_000);
});
