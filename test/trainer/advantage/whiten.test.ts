import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { advantageSchema, groupAdvantage, normaliseBatch } from "../../../trainer/advantage/advantage.ts";
import { whiten } from "../../../trainer/advantage/whiten.ts";
import { ALGORITHMS, largestDifference } from "../../oracle/fixtures.ts";

const row = (lossMask: readonly number[], advantages: readonly number[]) => ({
  lossMask: Uint8Array.from(lossMask),
  advantages: Float64Array.from(advantages),
});

describe("whiten", () => {
  it("takes mean and spread over the action tokens of all rows, a long row weighing more", () => {
    // 1, 1, 1, −3: mean 0, variance (3 + 9)/3 = 4.
    const rows = [row([0, 1, 1, 1], [99, 1, 1, 1]), row([0, 1], [99, -3])];
    expect(whiten(rows, { epsilon: 0 }).map((each) => [...each])).toEqual([
      [0, 0.5, 0.5, 0.5],
      [0, -1.5],
    ]);
  });

  it("gives nothing where nothing varies but by float noise, and for no or one token", () => {
    const noise = [row([1, 1], [0.7, 0.7 + 1e-9])];
    expect(whiten(noise, { epsilon: 0 }).map((each) => each.map(Math.abs))).toEqual([Float64Array.of(0, 0)]);
    expect(whiten([row([0, 1], [0, 5])], { epsilon: 0 })[0]?.[1]).toBe(0);
    expect(whiten([row([0], [3])], { epsilon: 0 })).toEqual([Float64Array.of(0)]);
    expect(whiten([], { epsilon: 0 })).toEqual([]);
  });

  it("has mean 0 and spread 1, whatever the rewards' scale and shift", () => {
    const advantage = fc.integer({ min: -8, max: 8 });
    fc.assert(
      fc.property(
        fc.array(fc.array(advantage, { minLength: 1, maxLength: 5 }), { minLength: 1, maxLength: 5 }),
        fc.integer({ min: 1, max: 9 }),
        advantage,
        (table, scale, shift) => {
          fc.pre(new Set(table.flat()).size > 1);
          const of = (values: readonly number[][]) =>
            whiten(
              values.map((each) =>
                row(
                  each.map(() => 1),
                  each,
                ),
              ),
              { epsilon: 0 },
            ).flatMap((each) => [...each]);
          const once = of(table);
          const n = once.length;
          expect(once.reduce((sum, each) => sum + each, 0)).toBeCloseTo(0, 9);
          expect(once.reduce((sum, each) => sum + each * each, 0) / (n - 1)).toBeCloseTo(1, 9);
          const moved = of(table.map((each) => each.map((value) => scale * value + shift)));
          moved.forEach((each, at) => expect(each).toBeCloseTo(once[at] ?? NaN, 9));
        },
      ),
    );
  });

  it("is what PyTorch computes", () => {
    const { batch, rows } = ALGORITHMS;
    const ours = whiten(
      rows.map(({ lossMask }, at) => row([...lossMask], batch.penalised[at] ?? [])),
      batch,
    );
    // Both are double precision; sums are taken in another order.
    expect(largestDifference(ours, batch.whitened)).toBeLessThan(1e-12);
  });
});

describe("methods that normalise over the batch", () => {
  const plain = advantageSchema.parse({ type: "batch-mean-std" });
  const baseline = advantageSchema.parse({ type: "group-mean-batch-std" });
  const group = [Float64Array.of(1, 1), Float64Array.of(0)];

  it("keep every group: credits as they are, or less their group's mean", () => {
    expect(groupAdvantage(group, plain)).toMatchObject({ advantages_RT: group, flat: false });
    expect(groupAdvantage(group, baseline).advantages_RT.map((each) => [...each])).toEqual([[0.5, 0.5], [-0.5]]);
    expect(groupAdvantage([Float64Array.of(1)], plain).flat).toBe(false);
    expect(groupAdvantage([Float64Array.of(1), Float64Array.of(1)], baseline).flat).toBe(false);
    expect(groupAdvantage([], plain).flat).toBe(true);
  });

  it("are finished over the batch, and the others are left alone", () => {
    const rows = [row([1, 1], [1, 3]), row([1], [2])];
    expect(
      normaliseBatch(rows, advantageSchema.parse({ type: "batch-mean-std", epsilon: 0 })).map((each) => [...each]),
    ).toEqual([[-1, 1], [0]]);
    const [first] = normaliseBatch(rows, { type: "group-mean" });
    expect(first).toBe(rows[0]?.advantages);
  });
});
