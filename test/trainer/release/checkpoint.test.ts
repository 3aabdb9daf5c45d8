import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import {
  engineFolder,
  readNewestCheckpoint,
  saveCheckpoint,
  type LoopState,
} from "../../../trainer/release/checkpoint.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-checkpoint-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const engine = {
  save: async (to: string) => {
    await mkdir(to, { recursive: true });
    await writeFile(join(to, "weights"), "w");
    await writeFile(join(to, "moments"), Float32Array.of(0, 1, -0.5));
  },
};

function stateAt(step: number): LoopState {
  return {
    run: "r",
    policy: "flight",
    method: "lora",
    seed: 1,
    step,
    lineage: { base: 0, made: [1, 2, 3, 4, 5, 6, 7, 8, 9] },
    lastBatch: { id: `ba_${step}`, metrics: { reward_mean: 0.5 } },
    sums: { wallSeconds: 1.5, stepSeconds: 2, trainedTokens: 10, trainSeconds: 1, decodedTokens: 5, decodeSeconds: 1 },
    rewards: [{ version: 0, sum: 3, count: 8 }],
    baseline: { mean: 0, rollouts: 0 },
    replay: [],
  };
}

/** With something in every buffer. */
const full: LoopState = {
  ...stateAt(3),
  baseline: { mean: 0.25, rollouts: 12 },
  replay: [
    {
      ...{ batchId: "ba_2", groupId: "gr_2", step: 2, uses: 1, weight: 0.5 },
      rollouts: [{ id: "ro_2", advantages: [0.1, -1 / 3] }],
    },
  ],
};

async function filesIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => relative(folder, join(entry.parentPath, entry.name)));
}

describe("checkpoints", () => {
  it("come back as they were written, the newest first", async () => {
    for (const step of [0, 9, 10]) await saveCheckpoint(dir, { engine, state: stateAt(step), keep: 5 });
    const newest = await readNewestCheckpoint(dir);
    expect(newest?.state).toEqual(stateAt(10));
    expect(await readFile(join(engineFolder(newest?.folder ?? ""), "weights"), "utf8")).toBe("w");
  });

  it("keep the newest few", async () => {
    for (const step of [0, 1, 2, 3]) await saveCheckpoint(dir, { engine, state: stateAt(step), keep: 2 });
    expect((await readdir(dir)).toSorted()).toEqual(["000000", "000002", "000003"]);
  });

  it("keep that of the version whose rollouts earned most, as long as none has earned more", async () => {
    const earned = [0.2, 0.9, 0.8, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.1];
    const kept: string[][] = [];
    for (let step = 0; step <= 9; step += 1) {
      // A version's rollouts are counted by the step after it.
      const rewards = earned.slice(0, step).map((sum, version) => ({ version, sum, count: 1 }));
      await saveCheckpoint(dir, { engine, state: { ...stateAt(step), rewards }, keep: 1 });
      kept.push((await readdir(dir)).map((name) => String(Number(name))).toSorted());
    }
    // Means are over three neighbours, as far as they are known: 2 is the best of the first ones, and 7 and 8 of all.
    expect(kept).toEqual([
      ["0"],
      ["0", "1"],
      ["1", "2"],
      ["2", "3"],
      ["2", "4"],
      ["2", "5"],
      ["2", "6"],
      ["2", "7"],
      ["7", "8"],
      ["8", "9"],
    ]);
  });

  it("are nothing where there is no folder, and none is made of what a crash left aside", async () => {
    expect(await readNewestCheckpoint(join(dir, "none"))).toBeUndefined();
    await saveCheckpoint(dir, { engine, state: stateAt(1), keep: 2 });
    await mkdir(join(dir, "000002.writing"));
    expect((await readNewestCheckpoint(dir))?.state.step).toBe(1);
  });

  it("are not passed over for an older one when the newest is damaged", async () => {
    for (const step of [1, 2]) await saveCheckpoint(dir, { engine, state: stateAt(step), keep: 2 });
    await writeFile(join(dir, "000002", "engine", "weights"), "other");
    await expect(readNewestCheckpoint(dir)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  });

  it("are refused with any one bit of any file turned over, cut short anywhere, or under another's name", async () => {
    await saveCheckpoint(dir, { engine, state: full, keep: 2 });
    const folder = join(dir, "000003");
    const files = ["state.json", "manifest.json", "engine/weights", "engine/moments"];
    expect((await filesIn(folder)).toSorted()).toEqual(files.toSorted());
    const refused = () => expect(readNewestCheckpoint(dir)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
    for (const file of files) {
      const whole = await readFile(join(folder, file));
      for (let at = 0; at < whole.length; at += Math.ceil(whole.length / 64)) {
        await writeFile(join(folder, file), whole.subarray(0, at));
        await refused();
      }
      // Nothing but itself vouches for the manifest.
      const every = file === "manifest.json" ? 1 : Math.ceil(whole.length / 64);
      for (let at = 0; at < whole.length; at += every) {
        const flipped = Buffer.from(whole);
        flipped[at] = (flipped[at] ?? 0) ^ (1 << (at % 8));
        await writeFile(join(folder, file), flipped);
        await refused();
      }
      await rm(join(folder, file));
      await refused();
      await writeFile(join(folder, file), whole);
      expect((await readNewestCheckpoint(dir))?.state).toEqual(full);
    }
    await rename(folder, join(dir, "000004"));
    await expect(readNewestCheckpoint(dir)).rejects.toThrow("000004 holds the checkpoint 000003");
  }, 120_000);

  it("refuse a state of another form", async () => {
    const odd = { ...stateAt(1), surprise: true };
    await saveCheckpoint(dir, { engine, state: odd, keep: 2 });
    await expect(readNewestCheckpoint(dir)).rejects.toThrow("was written by another version of the trainer");
  });
});
