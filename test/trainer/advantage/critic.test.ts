import { describe, expect, it } from "vitest";
import { advantageSchema, groupAdvantage, normaliseBatch } from "../../../trainer/advantage/advantage.ts";
import { criticAdvantages } from "../../../trainer/advantage/critic.ts";
import { klPenalties } from "../../../trainer/advantage/kl-penalty.ts";
import { largestDifference } from "../../oracle/fixtures.ts";
import { VALUES } from "../../oracle/value-fixtures.ts";

/** A row of two answers, of two tokens and of one. */
const row = {
  lossMask: Uint8Array.of(0, 1, 1, 0, 1),
  sequenceOfToken: [-1, 0, 0, -1, 1],
  credits: [0, 1, 1, 0, -1],
  values: [9, 0.5, 0.25, 9, 0.125],
};

describe("criticAdvantages", () => {
  it("pays an answer's credit with its last token, and ends the episode there", () => {
    const { advantages, returns } = criticAdvantages(row, { gamma: 1, lambda: 0.5 });
    // Errors: 0.25 − 0.5, 1 − 0.25; and −1 − 0.125 in the answer after it, which the first knows nothing of.
    expect([...advantages]).toEqual([0, -0.25 + 0.5 * 0.75, 0.75, 0, -1.125]);
    expect([...returns]).toEqual([0, 0.625, 1, 0, -1]);
  });

  it("takes each token's own penalty off its reward", () => {
    const penalties = [9, 0.5, 0.25, 9, 0];
    const { advantages } = criticAdvantages({ ...row, penalties }, { gamma: 1, lambda: 1 });
    expect([...advantages]).toEqual([0, 1 - 0.75 - 0.5, 1 - 0.25 - 0.25, 0, -1.125]);
  });

  it("with a critic that expects nothing and λ 1 credits every token as its answer was", () => {
    const { advantages, returns } = criticAdvantages({ ...row, values: [0, 0, 0, 0, 0] }, { gamma: 1, lambda: 1 });
    expect([...advantages]).toEqual(row.credits);
    expect(returns).toEqual(advantages);
  });

  it.each(VALUES.cases.map((each) => [`γ ${each.gamma}, λ ${each.lambda}`, each] as const))(
    "is what PyTorch computes, and so is its normalisation: %s",
    (_, { gamma, lambda, klCoefficient, advantages, returns, whitened }) => {
      const made = VALUES.rows.map((each) => {
        const penalties = klPenalties(each, { coefficient: klCoefficient, estimator: "k1" });
        return criticAdvantages({ ...each, values: each.proximalValues, penalties }, { gamma, lambda });
      });
      // Both are double precision; sums are taken in another order.
      expect(
        largestDifference(
          made.map((each) => each.advantages),
          advantages,
        ),
      ).toBeLessThan(1e-12);
      expect(
        largestDifference(
          made.map((each) => each.returns),
          returns,
        ),
      ).toBeLessThan(1e-12);
      const rows = VALUES.rows.map(({ lossMask }, at) => ({
        lossMask,
        advantages: made[at]?.advantages ?? new Float64Array(),
      }));
      const normal = normaliseBatch(rows, advantageSchema.parse({ type: "gae" }));
      expect(largestDifference(normal, whitened)).toBeLessThan(1e-12);
    },
  );
});

describe("the advantage gae", () => {
  it("keeps credit as it is, and every group, until the critic has spoken", () => {
    const credits = [Float64Array.of(1, 1), Float64Array.of(1)];
    expect(groupAdvantage(credits, advantageSchema.parse({ type: "gae" }))).toMatchObject({
      advantages_RT: credits,
      flat: false,
    });
  });
});
