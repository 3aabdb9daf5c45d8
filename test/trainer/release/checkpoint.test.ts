import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
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
  },
};

function stateAt(step: number): LoopState {
  return {
    run: "r",
    policy: "flight",
    method: "lora",
    seed: 1,
    step,
    lineage: { base: 0, first: 1 },
    lastBatch: { id: `ba_${step}`, metrics: { reward_mean: 0.5 } },
    sums: { wallSeconds: 1.5, stepSeconds: 2, trainedTokens: 10, trainSeconds: 1, decodedTokens: 5, decodeSeconds: 1 },
    rewards: [{ version: 0, sum: 3, count: 8 }],
  };
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
    expect((await readdir(dir)).toSorted()).toEqual(["000002", "000003"]);
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

  it("refuse a state of another form", async () => {
    const odd = { ...stateAt(1), surprise: true };
    await saveCheckpoint(dir, { engine, state: odd, keep: 2 });
    await expect(readNewestCheckpoint(dir)).rejects.toThrow("was written by another version of the trainer");
  });
});
