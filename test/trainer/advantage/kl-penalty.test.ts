import { describe, expect, it } from "vitest";
import { penaliseKl } from "../../../trainer/advantage/kl-penalty.ts";
import { ALGORITHMS, largestDifference } from "../../oracle/fixtures.ts";

describe("penaliseKl", () => {
  it("makes a token pay for itself and for what follows in its sequence, and for nothing beyond", () => {
    const row = {
      lossMask: Uint8Array.of(0, 1, 1, 0, 1),
      sequenceOfToken: [-1, 0, 0, -1, 1],
      advantages: Float64Array.of(9, 1, 1, 9, -1),
      policyLogprobs: [-7, -1, -2, -7, -1],
      referenceLogprobs: [-9, -1.5, -2.25, -9, -0.5],
    };
    // k1 is 0.5, 0.25 and −0.5.
    const penalised = penaliseKl(row, { coefficient: 2, estimator: "k1" });
    expect([...penalised]).toEqual([9, 1 - 2 * 0.75, 1 - 2 * 0.25, 9, -1 + 2 * 0.5]);
    expect([...penaliseKl(row, { coefficient: 2, estimator: "k2" })]).toEqual([
      9,
      1 - 0.25 - 0.0625,
      1 - 0.0625,
      9,
      -1 - 0.25,
    ]);
  });

  it("costs nothing where policy and reference agree", () => {
    const row = ALGORITHMS.rows[2];
    if (row === undefined) throw new Error("no row");
    const advantages = Float64Array.from(row.advantages);
    const same = { ...row, advantages, referenceLogprobs: row.policyLogprobs };
    for (const estimator of ["k1", "k2", "k3"] as const) {
      expect(penaliseKl(same, { coefficient: 5, estimator })).toEqual(advantages);
    }
  });

  it("is what PyTorch computes", () => {
    const { coefficient, estimator, penalised } = ALGORITHMS.batch;
    const ours = ALGORITHMS.rows.map((row) =>
      penaliseKl({ ...row, advantages: Float64Array.from(row.advantages) }, { coefficient, estimator }),
    );
    expect(largestDifference(ours, penalised)).toBeLessThan(1e-12);
  });
});
