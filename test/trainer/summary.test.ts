import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import type { Evaluation } from "#shared/run-events.ts";
import { summaryOf, writeJson } from "../../trainer/summary.ts";

const estimate = (mean: number) => ({ mean, low: mean - 0.1, high: mean + 0.1 });
const evaluation = (version: string, mean: number): Evaluation => ({
  version,
  reward: estimate(mean),
  first_tool: estimate(0.4),
  correct: estimate(0.3),
  n: 500,
  failed: 12,
  wall_s: 3.21,
});

it("the summary has the form that outside checks read: plain means, intervals beside them", async () => {
  const summary = summaryOf({
    task: "flight",
    watchFirstTool: "memory",
    state: {
      run: "ru_1",
      policy: "flight",
      method: "lora",
      seed: 1,
      step: 24,
      lineage: { base: 0, made: [] },
      lastBatch: null,
      sums: {
        wallSeconds: 123.456,
        stepSeconds: 2,
        trainedTokens: 1000,
        trainSeconds: 3,
        decodedTokens: 0,
        decodeSeconds: 0,
      },
      rewards: [],
      baseline: { mean: 0, rollouts: 0 },
      replay: [],
    },
    before: evaluation("flight@0", 0.5),
    after: null,
    totals: { rollouts: 10, calls: 30, dropped: { zero_spread: 2 } },
  });
  expect(summary).toEqual({
    task: "flight",
    run: "ru_1",
    steps: 24,
    wall_s: 123.5,
    train_s: 2,
    eval_before: {
      version: "flight@0",
      reward: 0.5,
      reward_ci: [0.4, 0.6],
      memory_first: 0.4,
      memory_first_ci: [0.30000000000000004, 0.5],
      correct: 0.3,
      correct_ci: [0.19999999999999998, 0.4],
      n: 500,
      failed: 12,
      wall_s: 3.2,
    },
    eval_after: null,
    tokens_per_s: { decode: 0, train: 333 },
    calls: 30,
    rollouts: 10,
    dropped: { zero_spread: 2 },
  });

  const dir = await mkdtemp(join(tmpdir(), "fulgur-summary-"));
  await writeJson(join(dir, "runs", "summary.json"), summary);
  expect(JSON.parse(await readFile(join(dir, "runs", "summary.json"), "utf8"))).toEqual(summary);
  expect(await readdir(join(dir, "runs"))).toEqual(["summary.json"]);
  await rm(dir, { recursive: true });
});
