import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";

const config = lossSchema.parse({ type: "ppo-clip", importance: { type: "sequence-mask" } });

/** Two answers of two tokens; log π − log β of each token. */
function row(logWeights: readonly number[]): LossRow {
  const policyLogprobs = [0, ...logWeights.map((each) => -3 + each)];
  return {
    rollout: 0,
    lossMask: Uint8Array.of(0, 1, 1, 1, 1),
    sequenceOfToken: [-1, 0, 0, 1, 1],
    advantages: [0, 1, 1, 1, 1],
    behaviourLogprobs: [0, -3, -3, -3, -3],
    policyLogprobs,
  };
}

describe("sequence-mask", () => {
  it("takes out an answer that is too far on the whole, also from what the loss is divided by", () => {
    const { dLogprobs, metrics } = computeLoss([row([0, 0, 1, 0.5])], config);
    // exp(0.75) is over 2: two tokens are left.
    expect(dLogprobs).toEqual([Float32Array.of(0, -0.5, -0.5, 0, 0)]);
    expect(metrics.masked_fraction).toBe(0.5);
  });

  it("keeps an answer with one odd token, whose weight is truncated", () => {
    const { dLogprobs, metrics } = computeLoss([row([1.2, 0, 0, 0])], config);
    expect(metrics.masked_fraction).toBe(0);
    expect(dLogprobs).toEqual([Float32Array.of(0, -0.5, -0.25, -0.25, -0.25)]);
  });

  it("takes out what has become too unlikely as well, and may leave nothing", () => {
    const { loss, dLogprobs, metrics } = computeLoss([row([-1, -1, 2, 2])], config);
    expect(loss).toBe(0);
    expect(dLogprobs).toEqual([new Float32Array(5)]);
    expect(metrics.masked_fraction).toBe(1);
  });

  it("measures the policy at the batch's first update: later ones keep the same answers", () => {
    const moved = { ...row([0, 0, 2, 2]), proximalLogprobs: [0, -3, -3, -3, -3] };
    expect(computeLoss([moved], config).metrics.masked_fraction).toBe(0);
  });

  it("says nothing of masks where there are none", () => {
    expect(computeLoss([row([0, 0, 0, 0])], lossSchema.parse({ type: "ppo-clip" })).metrics).not.toHaveProperty(
      "masked_fraction",
    );
  });
});
