import { describe, expect, it } from "vitest";
import { versionsWithin } from "../../../trainer/batch/live-traffic.ts";

describe("versionsWithin", () => {
  const lineage = { base: 13, made: [20, 21, 22, 24, 25, 28] };

  it("is the base alone before the first step, whatever may be behind it", () => {
    expect(versionsWithin(lineage, 0, 4)).toEqual([13]);
  });

  it("goes back along the run's own line, to its base at most", () => {
    expect(versionsWithin(lineage, 2, 4)).toEqual([13, 20, 21]);
    expect(versionsWithin(lineage, 6, 1)).toEqual([25, 28]);
    expect(versionsWithin(lineage, 6, 0)).toEqual([28]);
  });
});
