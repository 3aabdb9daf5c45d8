import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema, type LossConfig } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";

const gspo = (given: object = {}): LossConfig =>
  lossSchema.parse({ type: "gspo", aggregation: "sequence-mean", ...given });

/** A row of two answers: tokens 1–2 and token 4, with their log-ratios to what sampled them. */
function row(logRatios: readonly [number, number, number], advantages: readonly [number, number] = [1, -1]): LossRow {
  const [a, b, c] = logRatios;
  return {
    rollout: 0,
    lossMask: Uint8Array.of(0, 1, 1, 0, 1),
    sequenceOfToken: [-1, 0, 0, -1, 1],
    advantages: [0, advantages[0], advantages[0], 0, advantages[1]],
    behaviourLogprobs: [0, -1, -1, 0, -1],
    proximalLogprobs: [0, -1, -1, 0, -1],
    policyLogprobs: [0, -1 + a, -1 + b, 0, -1 + c],
  };
}

describe("gspo", () => {
  it("gives all tokens of an answer the ratio of the answer: the geometric mean of theirs", () => {
    const { loss, dLogprobs } = computeLoss([row([Math.log(4), 0, 0])], gspo({ clipHigh: 9 }));
    // s = √4 = 2; two sequences, the first of two tokens.
    expect(loss).toBeCloseTo((-2 + 1) / 2, 12);
    expect(dLogprobs[0]?.[1]).toBeCloseTo(-2 / 4, 7);
    expect(dLogprobs[0]?.[2]).toBeCloseTo(-2 / 4, 7);
    expect(dLogprobs[0]?.[4]).toBeCloseTo(1 / 2, 7);
  });

  it("clips an answer as a whole, though one of its tokens alone would not be", () => {
    const { loss, dLogprobs, metrics } = computeLoss([row([Math.log(4), 0, 0])], gspo({ clipHigh: 0.5 }));
    expect([...(dLogprobs[0] ?? [])]).toEqual([0, 0, 0, 0, 0.5]);
    expect(loss).toBeCloseTo((-1.5 + 1) / 2, 12);
    expect(metrics.clip_high_fraction).toBeCloseTo(2 / 3, 12);
  });

  it("has the paper's narrow bounds by default", () => {
    const clipped = (logRatio: number) =>
      computeLoss([row([logRatio, logRatio, 0])], gspo()).metrics.clip_high_fraction;
    expect(clipped(3.9e-4)).toBe(0);
    expect(clipped(4.1e-4)).toBeGreaterThan(0);
  });

  it("is PPO's clip where every answer is one token, and does not see tokens change places", () => {
    const ratio = fc.double({ min: -2, max: 2, noNaN: true });
    const ppo = lossSchema.parse({ type: "ppo-clip", clipLow: 0.2, clipHigh: 0.3, aggregation: "sequence-mean" });
    fc.assert(
      fc.property(ratio, ratio, ratio, ratio, (a, b, c, advantage) => {
        const config = gspo({ clipLow: 0.2, clipHigh: 0.3 });
        const single = { ...row([a, b, c], [advantage, advantage]), sequenceOfToken: [-1, 0, 1, -1, 2] };
        const [ours, theirs] = [computeLoss([single], config), computeLoss([single], ppo)];
        expect(ours.loss).toBeCloseTo(theirs.loss, 12);
        expect(ours.dLogprobs).toEqual(theirs.dLogprobs);
        const [one, other] = [row([a, b, c]), row([b, a, c])].map((each) => computeLoss([each], config).loss);
        expect(one).toBeCloseTo(other ?? NaN, 12);
      }),
    );
  });

  it("takes a row that names no sequences as one", () => {
    const { sequenceOfToken: _, ...whole } = row([Math.log(8), 0, 0], [1, 1]);
    expect(computeLoss([whole], gspo({ clipHigh: 9 })).loss).toBeCloseTo(-2, 12);
  });
});
