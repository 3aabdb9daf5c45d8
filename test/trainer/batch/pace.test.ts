import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { capacity } from "../../../trainer/batch/pace.ts";

const pace = { maxStaleness: 1, groups: 16, stepsLeft: 40, waiting: 0, claimed: 0 };

describe("capacity", () => {
  it("is (K + 1) batches, less what waits and what is being trained on", () => {
    expect(capacity(pace)).toBe(32);
    expect(capacity({ ...pace, waiting: 16 })).toBe(16);
    expect(capacity({ ...pace, waiting: 20, claimed: 12 })).toBe(0);
    expect(capacity({ ...pace, maxStaleness: 0 })).toBe(16);
    expect(capacity({ ...pace, maxStaleness: 0, claimed: 16 })).toBe(0);
  });

  it("starts nothing that no step is left for", () => {
    expect(capacity({ ...pace, stepsLeft: 1 })).toBe(16);
    expect(capacity({ ...pace, stepsLeft: 1, claimed: 16 })).toBe(0);
    expect(capacity({ ...pace, stepsLeft: 0 })).toBe(0);
  });

  it("bounds the age of what is trained on by K, first in first out", () => {
    fc.assert(
      fc.property(fc.nat({ max: 3 }), fc.integer({ min: 1, max: 5 }), (maxStaleness, groups) => {
        const line: number[] = [];
        for (let step = 0; step < 12; step += 1) {
          const room = capacity({ maxStaleness, groups, stepsLeft: 12 - step, waiting: line.length, claimed: 0 });
          line.push(...Array.from({ length: room }, () => step));
          const batch = line.splice(0, groups);
          expect(batch).toHaveLength(groups);
          for (const startedAt of batch) expect(step - startedAt).toBeLessThanOrEqual(maxStaleness);
        }
        expect(line).toEqual([]);
      }),
    );
  });
});
