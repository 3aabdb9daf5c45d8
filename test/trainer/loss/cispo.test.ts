import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import { oneToken } from "./one-token.ts";

const config = lossSchema.parse({ type: "cispo", importance: { type: "ratio" } });
const at = (ratio: number, advantage: number) => computeLoss([oneToken({ ratio, advantage })], config);

describe("cispo", () => {
  it("weighs the log-probability by the ratio up to its cap of 5", () => {
    expect(at(1, 2).dLogprobs[0]?.[1]).toBe(-2);
    expect(at(1, 2).loss).toBeCloseTo(4, 12);
    expect(at(3, 2).dLogprobs[0]?.[1]).toBeCloseTo(-6, 6);
    expect(at(0.01, 2).dLogprobs[0]?.[1]).toBeCloseTo(-0.02, 7);
  });

  it("goes on pulling past the cap, where PPO's clip lets go", () => {
    expect(at(9, 1).dLogprobs[0]?.[1]).toBe(-5);
    expect(at(9, -1).dLogprobs[0]?.[1]).toBe(5);
    expect(at(9, 1).metrics).toMatchObject({ clip_high_fraction: 1, clip_low_fraction: 0 });
    const ppo = lossSchema.parse({ type: "ppo-clip" });
    expect(computeLoss([oneToken({ ratio: 9, advantage: 1 })], ppo).dLogprobs[0]?.[1]).toBe(0);
  });

  it("has a lower bound where one is asked for", () => {
    const bounded = lossSchema.parse({ type: "cispo", clipLow: 0.2, importance: { type: "ratio" } });
    const { dLogprobs, metrics } = computeLoss([oneToken({ ratio: 0.1, advantage: 1 })], bounded);
    expect(dLogprobs[0]?.[1]).toBeCloseTo(-0.8, 7);
    expect(metrics.clip_low_fraction).toBe(1);
  });

  it("is reinforce on fresh samples", () => {
    const fresh = [oneToken({ ratio: 1, advantage: -0.7 })];
    const reinforce = computeLoss(fresh, lossSchema.parse({ type: "reinforce" }));
    expect(computeLoss(fresh, config).dLogprobs).toEqual(reinforce.dLogprobs);
  });
});
