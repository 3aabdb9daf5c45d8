import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import { oneToken } from "./one-token.ts";

const config = lossSchema.parse({ type: "dual-clip" });
const at = (ratio: number, advantage: number) => computeLoss([oneToken({ ratio, advantage })], config);

describe("dual-clip", () => {
  it("pulls a bad action by its ratio up to the bound, and no more beyond it", () => {
    expect(at(2.9, -1).loss).toBeCloseTo(2.9, 12);
    expect(at(2.9, -1).dLogprobs[0]?.[1]).toBeCloseTo(2.9, 6);
    expect(at(5, -1).loss).toBeCloseTo(3, 12);
    expect(at(5, -1).dLogprobs[0]?.[1]).toBe(0);
    expect(at(5, -1).metrics).toMatchObject({ clip_high_fraction: 1, clip_low_fraction: 0 });
  });

  it("leaves good actions to PPO's clip", () => {
    expect(at(5, 1).loss).toBeCloseTo(-1.2, 12);
    expect(at(0.5, 1).loss).toBeCloseTo(-0.5, 12);
    expect(at(0.5, -1).metrics.clip_low_fraction).toBe(1);
  });

  it("never costs more than PPO's clip, and never more than bound times the advantage", () => {
    const ppo = lossSchema.parse({ type: "ppo-clip", clipLow: 0.2, clipHigh: 0.2 });
    const ratio = fc.double({ min: 0.05, max: 20, noNaN: true });
    fc.assert(
      fc.property(ratio, fc.double({ min: -3, max: 3, noNaN: true }), (drawn, advantage) => {
        const ours = at(drawn, advantage).loss;
        const theirs = computeLoss([oneToken({ ratio: drawn, advantage })], ppo).loss;
        expect(ours).toBeLessThanOrEqual(theirs + 1e-12);
        expect(ours).toBeLessThanOrEqual(3 * Math.max(0, -advantage) + 1e-9);
        if (advantage >= 0) expect(ours).toBe(theirs);
      }),
    );
  });
});
