import { describe, expect, it } from "vitest";
import { Random } from "../../../trainer/engine/random.ts";
import { measureMismatch } from "../../../trainer/loss/mismatch.ts";

describe("measureMismatch", () => {
  it("is nothing where the policies agree, and for no tokens at all", () => {
    const same = { lossMask: Uint8Array.of(0, 1, 1), behaviourLogprobs: [0, -1, -2], policyLogprobs: [-9, -1, -2] };
    const nothing = { kl_behaviour: 0, importance_weight_mean: 1, importance_weight_max: 1, ess: 1 };
    expect(measureMismatch([same])).toEqual(nothing);
    expect(measureMismatch([])).toEqual(nothing);
  });

  it("is by hand for two tokens with weights 2 and 1/2", () => {
    const rows = [
      { lossMask: Uint8Array.of(1), behaviourLogprobs: [-1], policyLogprobs: [-1 + Math.LN2] },
      { lossMask: Uint8Array.of(1), behaviourLogprobs: [-1], policyLogprobs: [-1 - Math.LN2] },
    ];
    const { kl_behaviour, importance_weight_mean, importance_weight_max, ess } = measureMismatch(rows);
    expect(importance_weight_mean).toBeCloseTo(1.25, 12);
    expect(importance_weight_max).toBeCloseTo(2, 12);
    // (2 − ln 2 − 1 + 1/2 + ln 2 − 1) / 2
    expect(kl_behaviour).toBeCloseTo(0.25, 12);
    // 2.5² / (2 · 4.25)
    expect(ess).toBeCloseTo(6.25 / 8.5, 12);
  });

  it("estimates the KL divergence between two coins from what the first threw", () => {
    const random = Random.seeded(3);
    const [thrower, other] = [0.6, 0.7];
    const throws = Array.from({ length: 20_000 }, () => random.next() < thrower);
    const logprobs = (heads: number) => throws.map((head) => Math.log(head ? heads : 1 - heads));
    const { kl_behaviour, importance_weight_mean } = measureMismatch([
      {
        lossMask: new Uint8Array(throws.length).fill(1),
        behaviourLogprobs: logprobs(thrower),
        policyLogprobs: logprobs(other),
      },
    ]);
    const exact = thrower * Math.log(thrower / other) + (1 - thrower) * Math.log((1 - thrower) / (1 - other));
    // Standard error of k3 here is about 2e-4.
    expect(Math.abs(kl_behaviour - exact)).toBeLessThan(1e-3);
    expect(Math.abs(importance_weight_mean - 1)).toBeLessThan(0.01);
  });
});
