import { describe, expect, it } from "vitest";
import { assignCredit } from "../../../trainer/credit/credit.ts";
import { ALGORITHMS, largestDifference } from "../../oracle/fixtures.ts";

describe("assignCredit against PyTorch", () => {
  it.each(ALGORITHMS.credits.map((each) => [`γ ${each.gamma}, ${each.air.length} transitions`, each] as const))(
    "%s",
    (_, { gamma, terminalWeight, rewards, identical, discounted, air }) => {
      const ours = [
        assignCredit(rewards, { type: "identical" }),
        assignCredit(rewards, { type: "discounted", gamma }),
        assignCredit(rewards, { type: "air", gamma, terminalWeight }),
      ];
      // Both are double precision; sums are taken in another order.
      expect(largestDifference(ours, [identical, discounted, air])).toBeLessThan(1e-12);
    },
  );
});
