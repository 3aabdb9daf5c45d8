import { describe, expect, it } from "vitest";
import { advantageSchema, groupAdvantage } from "../../../trainer/advantage/advantage.ts";
import { ALGORITHMS, largestDifference } from "../../oracle/fixtures.ts";

describe("groupAdvantage against PyTorch", () => {
  it.each(["group-mean", "group-mean-std", "leave-one-out"] as const)("%s", (type) => {
    for (const group of ALGORITHMS.groups) {
      const credits_RT = group.credits.map((each) => Float64Array.from(each));
      const { advantages_RT, flat } = groupAdvantage(credits_RT, advantageSchema.parse({ type }));
      expect(flat).toBe(false);
      // Both are double precision; sums are taken in another order.
      expect(largestDifference(advantages_RT, group[type])).toBeLessThan(1e-12);
    }
  });
});
