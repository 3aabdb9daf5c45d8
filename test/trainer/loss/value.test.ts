import { afterAll, describe, expect, it } from "vitest";
import * as fc from "fast-check";
import { explainedVariance, valueLoss, type ValueRow } from "../../../trainer/loss/value.ts";
import { largestDifference } from "../../oracle/fixtures.ts";
import { findPython, hasModule, runOracle } from "../../oracle/python.ts";
import { VALUES } from "../../oracle/value-fixtures.ts";

/** A prompt token, and one token whose value moved from `before` to `now`. */
function one(now: number, before: number, target: number): ValueRow {
  return { lossMask: Uint8Array.of(0, 1), values: [9, now], proximalValues: [9, before], returns: [9, target] };
}
const options = { coefficient: 0.5, clip: 0.2 };

describe("valueLoss", () => {
  it("is half the squared error, and pulls a value to its return by the coefficient", () => {
    const result = valueLoss([one(0.5, 0.5, 1)], options);
    expect(result.value_loss).toBe(0.125);
    expect(result.dValues).toEqual([Float32Array.of(0, -0.25)]);
    expect(result.value_clip_fraction).toBe(0);
  });

  it("pulls no more at a value that has moved by more than the clip towards its return", () => {
    const result = valueLoss([one(0.5, 0, 1)], options);
    expect(result.value_loss).toBeCloseTo(0.8 ** 2 / 2, 12);
    expect(result.dValues[0]?.[1]).toBe(0);
    expect(result.value_clip_fraction).toBe(1);
  });

  it("pulls back one that has moved away from its return, however far", () => {
    const result = valueLoss([one(-0.5, 0, 1)], options);
    expect(result.value_loss).toBeCloseTo(1.5 ** 2 / 2, 12);
    expect(result.dValues[0]?.[1]).toBe(-0.75);
    expect(result.value_clip_fraction).toBe(0);
  });

  it("is a mean over action tokens, however they are spread over rows, and nothing without any", () => {
    const rows = [one(1, 1, 0), one(3, 3, 0)];
    const { value_loss, dValues } = valueLoss(rows, { coefficient: 1, clip: 1 });
    expect(value_loss).toBe((0.5 + 4.5) / 2);
    expect(dValues.map((each) => each[1])).toEqual([0.5, 1.5]);
    const none = { lossMask: Uint8Array.of(0), values: [1], proximalValues: [1], returns: [2] };
    expect(valueLoss([none], options)).toEqual({
      value_loss: 0,
      value_clip_fraction: 0,
      dValues: [Float32Array.of(0)],
    });
  });

  it("has the derivative that finite differences find", () => {
    const number = fc.double({ min: -2, max: 2, noNaN: true });
    fc.assert(
      fc.property(number, number, number, (now, before, target) => {
        const at = (value: number) => valueLoss([one(value, before, target), one(0, 0, 1)], options);
        const h = 1e-5;
        const [lower, here, upper] = [at(now - h), at(now), at(now + h)];
        // Within h of a corner the slope is neither of the two beside it.
        fc.pre(lower.value_clip_fraction === upper.value_clip_fraction);
        const slope = (options.coefficient * (upper.value_loss - lower.value_loss)) / (2 * h);
        expect(here.dValues[0]?.[1]).toBeCloseTo(slope, 6);
      }),
    );
  });

  it.each(VALUES.cases.map((each) => [`clip ${each.clip}, λ ${each.lambda}`, each] as const))(
    "is what PyTorch computes: %s",
    (_, { coefficient, clip, returns, loss, clipFraction, explainedVariance: explained, dValues }) => {
      const rows = VALUES.rows.map((row, at) => ({ ...row, returns: returns[at] ?? [] }));
      const ours = valueLoss(rows, { coefficient, clip });
      expect(ours.value_loss).toBeCloseTo(loss, 12);
      expect(ours.value_clip_fraction).toBeCloseTo(clipFraction, 12);
      // Our derivatives are handed over in float32: 6e-8 relative.
      expect(largestDifference(ours.dValues, dValues)).toBeLessThan(1e-7);
      expect(explainedVariance(rows)).toBeCloseTo(explained, 12);
    },
  );

  it("the cases reach the clip, and values that it leaves alone", () => {
    const fractions = VALUES.cases.map((each) => each.clipFraction);
    expect(Math.max(...fractions)).toBeGreaterThan(0);
    expect(Math.min(...fractions)).toBe(0);
  });
});

describe("explainedVariance", () => {
  const rows = (values: readonly number[], returns: readonly number[]) => [
    { lossMask: Uint8Array.from(values, () => 1), proximalValues: values, returns },
  ];

  it("is 1 for a critic that knows, 0 for a constant, negative for one that misleads, and 0 where nothing varies", () => {
    expect(explainedVariance(rows([1, 2, 3], [1, 2, 3]))).toBe(1);
    expect(explainedVariance(rows([7, 7, 7], [1, 2, 3]))).toBe(0);
    expect(explainedVariance(rows([3, 2, 1], [1, 2, 3]))).toBe(-3);
    expect(explainedVariance(rows([1, 2, 3], [2, 2, 2]))).toBe(0);
    expect(explainedVariance([])).toBe(0);
  });
});

const python = findPython();
const canRun = python !== null && hasModule(python, "peft");
afterAll(() => {
  if (!canRun) console.info("Oracle: no Python with torch and peft; value.json is taken as committed.");
});
it.skipIf(!canRun)("value.json is what PyTorch computes now", { timeout: 120_000 }, () => {
  if (python === null) return;
  expect(runOracle(python, "value.py", ["--check"])).toContain("agrees");
});
