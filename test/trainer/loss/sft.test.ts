import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";

const row: LossRow = {
  rollout: 0,
  lossMask: Uint8Array.of(0, 1, 1),
  advantages: [0, 0.5, -0.5],
  behaviourLogprobs: [0, 0, 0],
  policyLogprobs: [0, -1, -3],
};

describe("sft", () => {
  it("is the mean cross-entropy of the tokens, whatever they earned and whoever said them", () => {
    const { loss, dLogprobs } = computeLoss([row], lossSchema.parse({ type: "sft", imitate: "all" }));
    expect(loss).toBe(2);
    expect(dLogprobs).toEqual([Float32Array.of(0, -0.5, -0.5)]);
  });

  it("imitates by default only what did better than its baseline", () => {
    const { loss, dLogprobs } = computeLoss([row], lossSchema.parse({ type: "sft" }));
    expect(loss).toBe(0.5);
    expect(dLogprobs).toEqual([Float32Array.of(0, -0.5, 0)]);
  });
});
