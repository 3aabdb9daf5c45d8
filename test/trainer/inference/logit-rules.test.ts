import { describe, expect, test } from "vitest";
import { LogitRules, NO_ADJUSTMENTS as NONE } from "../../../trainer/inference/logit-rules.ts";

const softmax = (logits: readonly number[]): Float32Array => {
  const most = Math.max(...logits);
  const weights = logits.map((logit) => Math.exp(logit - most));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return Float32Array.from(weights, (weight) => weight / total);
};
/** Largest difference; rows are float32, so 1e-6 is a few units in the last place. */
const difference = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, value, i) => Math.max(most, Math.abs(value - (b[i] ?? NaN))), 0);

describe("logit rules", () => {
  const logits = [0.5, -1, 2, 0];

  test("change nothing where nothing is asked, but the temperature", () => {
    expect(difference(new LogitRules(NONE, 1).apply(softmax(logits), null), softmax(logits))).toBeLessThan(1e-6);
    const cooler = new LogitRules(NONE, 0.5).apply(softmax(logits), null);
    expect(difference(cooler, softmax(logits.map((logit) => logit / 0.5)))).toBeLessThan(1e-6);
  });

  test("subtract once for presence and each time for frequency, from what was drawn alone", () => {
    const rules = new LogitRules({ frequencyPenalty: 0.25, presencePenalty: 1, bias: [] }, 2);
    for (const token of [2, 0, 2, 2]) rules.accept(token);
    const expected = [0.5 - 1 - 0.25, -1, 2 - 1 - 3 * 0.25, 0].map((logit) => logit / 2);
    expect(difference(rules.apply(softmax(logits), null), softmax(expected))).toBeLessThan(1e-6);
  });

  test("add a bias, and ignore one for a token that does not exist", () => {
    const rules = new LogitRules(
      {
        ...NONE,
        bias: [
          [1, 3],
          [99, 5],
        ],
      },
      1,
    );
    expect(difference(rules.apply(softmax(logits), null), softmax([0.5, 2, 2, 0]))).toBeLessThan(1e-6);
  });

  test("leave only what is allowed, with the ratios that it had", () => {
    const kept = new LogitRules(NONE, 1).apply(softmax(logits), [1, 3]);
    expect(difference(kept, softmax([-Infinity, -1, -Infinity, 0]))).toBeLessThan(1e-6);
    expect([kept[0], kept[2]]).toEqual([0, 0]);
  });

  test("lift a token whose probability float32 rounds to zero", () => {
    const row = Float32Array.of(1, 0, 0);
    const rules = new LogitRules(
      {
        ...NONE,
        bias: [
          [0, -100],
          [2, 100],
        ],
      },
      0,
    );
    expect(rules.apply(row, null)[2]).toBeCloseTo(1, 6);
    expect(row).toEqual(Float32Array.of(1, 0, 0));
  });
});
