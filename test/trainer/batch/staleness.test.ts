import { describe, expect, it } from "vitest";
import { isDue, stalenessOf, versionAt } from "../../../trainer/batch/staleness.ts";

describe("a run's line of versions", () => {
  const lineage = { base: 0, made: [41, 42, 47] };

  it("goes from the base to the numbers that were free", () => {
    expect([0, 1, 2, 3].map((step) => versionAt(lineage, step))).toEqual([0, 41, 42, 47]);
    expect(() => versionAt(lineage, 4)).toThrow("the version of step 4 was asked for, and 3 are published");
  });

  it("counts age along the line, not by number", () => {
    expect(stalenessOf(lineage, 0, 0)).toBe(0);
    expect(stalenessOf(lineage, 2, 42)).toBe(0);
    expect(stalenessOf(lineage, 2, 41)).toBe(1);
    expect(stalenessOf(lineage, 2, 0)).toBe(2);
    expect(stalenessOf(lineage, 3, 42)).toBe(1);
    expect(stalenessOf({ base: 3, made: [] }, 0, 3)).toBe(0);
  });

  it("has no place for another run's versions, nor for one that it has not made yet", () => {
    expect(stalenessOf(lineage, 2, 40)).toBe(Infinity);
    expect(stalenessOf(lineage, 3, 43)).toBe(Infinity);
    expect(stalenessOf(lineage, 2, 47)).toBe(Infinity);
  });

  it("waits for groups that would be too old in the next batch", () => {
    expect(isDue(4, 4, 1)).toBe(false);
    expect(isDue(3, 4, 1)).toBe(true);
    expect(isDue(3, 4, 2)).toBe(false);
  });
});
