import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { KL_ESTIMATORS, klTerm } from "../../../trainer/loss/kl.ts";

describe("klTerm", () => {
  it("is by hand for a token that the policy is twice as likely to say as the reference", () => {
    const [policy, reference] = [-1, -1 - Math.LN2];
    expect(klTerm("k1", policy, reference)).toEqual({ kl: expect.closeTo(Math.LN2, 12), dLogprob: 1 });
    expect(klTerm("k2", policy, reference)).toEqual({
      kl: expect.closeTo(Math.LN2 ** 2 / 2, 12),
      dLogprob: expect.closeTo(Math.LN2, 12),
    });
    // 1/2 + ln 2 − 1.
    expect(klTerm("k3", policy, reference)).toEqual({
      kl: expect.closeTo(Math.LN2 - 0.5, 12),
      dLogprob: expect.closeTo(0.5, 12),
    });
  });

  it.each(KL_ESTIMATORS)("%s: the derivative is that of the estimate", (estimator) => {
    const logprob = fc.double({ min: -4, max: -0.1, noNaN: true });
    fc.assert(
      fc.property(logprob, logprob, (policy, reference) => {
        const step = 1e-5;
        const at = (moved: number) => klTerm(estimator, moved, reference).kl;
        const slope = (at(policy + step) - at(policy - step)) / (2 * step);
        expect(klTerm(estimator, policy, reference).dLogprob).toBeCloseTo(slope, 6);
      }),
    );
  });

  it("k1 and k3 have the divergence as their expectation, k2 its gradient, by summing over all outcomes", () => {
    const policy = [0.5, 0.3, 0.2];
    const reference = [0.4, 0.4, 0.2];
    const pairs = policy.map((p, at): [number, number, number] => [p, Math.log(p), Math.log(reference[at] ?? NaN)]);
    const exact = pairs.reduce((sum, [p, a, b]) => sum + p * (a - b), 0);
    const expectation = (estimator: "k1" | "k2" | "k3") =>
      pairs.reduce((sum, [p, a, b]) => sum + p * klTerm(estimator, a, b).kl, 0);
    expect(expectation("k1")).toBeCloseTo(exact, 12);
    expect(expectation("k3")).toBeCloseTo(exact, 12);
    // ∂KL/∂(logit of outcome 0) = E[log(π/π_ref)·∇log π], with ∇log π(x) = [x = 0] − π(0).
    const gradient = (weight: (a: number, b: number) => number) =>
      pairs.reduce((sum, [p, a, b], at) => sum + p * weight(a, b) * ((at === 0 ? 1 : 0) - (policy[0] ?? NaN)), 0);
    const trueGradient = gradient((a, b) => a - b);
    expect(gradient((a, b) => klTerm("k2", a, b).dLogprob)).toBeCloseTo(trueGradient, 12);
    expect(gradient((a, b) => klTerm("k1", a, b).dLogprob)).toBeCloseTo(0, 12);
    expect(Math.abs(gradient((a, b) => klTerm("k3", a, b).dLogprob) - trueGradient)).toBeGreaterThan(1e-3);
  });
});
