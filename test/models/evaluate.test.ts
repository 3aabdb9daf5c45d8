import { describe, expect, it } from "vitest";
import { evaluate, type Run, summarise } from "../../models/evaluate.ts";

const run = (path: string, changes: Partial<Run> = {}): Run => ({
  path,
  calls: path.length - 1,
  failedCalls: 0,
  isCorrect: false,
  isWellFormed: true,
  tokens: 100,
  ...changes,
});

describe("summarise", () => {
  it("counts by hand", () => {
    const evaluation = summarise([
      run("MSA", { isCorrect: true }),
      run("MSA"),
      run("SA", { failedCalls: 1, isWellFormed: false }),
      run("A"),
    ]);
    expect(evaluation.memoryFirst).toBe(0.5);
    expect(evaluation.correct).toBe(0.25);
    expect(evaluation.correctOfMemorySearchAnswer).toBe(0.5);
    expect(evaluation.wellFormed).toBe(0.75);
    expect(evaluation.failedCalls).toBe(1 / 5);
    // 0.5·1 + 0.5·(0.9 + 0.1), 0.5·1 + 0.5·0.1, nothing, 0.5·0.1
    expect(evaluation.reward).toBeCloseTo((1 + 0.55 + 0 + 0.05) / 4, 12);
    expect(evaluation.paths[0]).toEqual(["MSA", 0.5]);
  });
});

describe("the model that ships", () => {
  it("starts reinforcement learning from where its card says: memory first in about a third, and able", async () => {
    const sampled = await evaluate("models/flight", { count: 256, temperature: 1, seed: 5 });
    // 256 runs: a standard deviation of 0.03 around 0.33.
    expect(sampled.memoryFirst).toBeGreaterThan(0.22);
    expect(sampled.memoryFirst).toBeLessThan(0.44);
    expect(sampled.correctOfMemorySearchAnswer).toBeGreaterThan(0.9);
    expect(sampled.failedCalls).toBeLessThan(0.03);
    expect(sampled.reward).toBeLessThan(0.55);
    expect(sampled.tokensPerRun).toBeLessThan(220);
  });

  it("is sampled alike by the same seed and otherwise by another", async () => {
    const options = { count: 16, temperature: 1 };
    const [first, again, other] = [
      await evaluate("models/flight", { ...options, seed: 1 }),
      await evaluate("models/flight", { ...options, seed: 1 }),
      await evaluate("models/flight", { ...options, seed: 2 }),
    ];
    expect(again).toEqual(first);
    expect(other).not.toEqual(first);
  });
});
