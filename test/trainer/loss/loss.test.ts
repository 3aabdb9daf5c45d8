import { readFileSync } from "node:fs";
import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { computeLoss, lossSchema, type LossConfig } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";
import { findPython, runOracle } from "../../oracle/python.ts";

const ppo = (given: object = {}): LossConfig => lossSchema.parse({ type: "ppo-clip", ...given });
const reinforce = (given: object = {}): LossConfig => lossSchema.parse({ type: "reinforce", ...given });

/** Two action tokens after one prompt token. */
function row(given: Partial<LossRow> = {}): LossRow {
  return {
    rollout: 0,
    lossMask: Uint8Array.of(0, 1, 1),
    advantages: [0, 2, -1],
    behaviourLogprobs: [0, -1, -2],
    policyLogprobs: [0, -1, -2],
    ...given,
  };
}

describe("computeLoss by hand", () => {
  it("pulls each token by its advantage where the data is fresh, ppo and reinforce alike", () => {
    for (const config of [ppo(), reinforce()]) {
      const { dLogprobs } = computeLoss([row()], config);
      // −A/N with N = 2 action tokens.
      expect(dLogprobs).toEqual([Float32Array.of(0, -1, 0.5)]);
    }
    expect(computeLoss([row()], ppo()).loss).toBe(-(2 - 1) / 2);
    expect(computeLoss([row()], reinforce()).loss).toBe((-2 * -1 + 1 * -2) / 2);
  });

  it("weighs a token by the truncated importance ratio to what sampled it", () => {
    const policyLogprobs = [0, -1 + Math.log(1.5), -2 + Math.log(5)];
    const { dLogprobs } = computeLoss([row({ policyLogprobs })], ppo());
    expect(dLogprobs[0]?.[1]).toBeCloseTo(-1.5 * (2 / 2), 6);
    // 5 is cut to the cap of 2.
    expect(dLogprobs[0]?.[2]).toBeCloseTo(2 * (1 / 2), 6);
  });

  it("stops pulling once the ratio to the first update's policy is past its bound, on the paying side only", () => {
    const at = (ratio: number, advantage: number) =>
      computeLoss(
        [
          row({
            lossMask: Uint8Array.of(0, 1, 0),
            advantages: [0, advantage, 0],
            proximalLogprobs: [0, -1, 0],
            policyLogprobs: [0, -1 + Math.log(ratio), 0],
          }),
        ],
        ppo({ clipLow: 0.2, clipHigh: 0.28 }),
      );
    expect(at(1.3, 1).dLogprobs[0]?.[1]).toBe(0);
    expect(at(1.3, 1).loss).toBeCloseTo(-1.28, 10);
    expect(at(1.3, 1).metrics).toMatchObject({ clip_high_fraction: 1, clip_low_fraction: 0 });
    expect(at(0.7, -1).dLogprobs[0]?.[1]).toBe(0);
    expect(at(0.7, -1).metrics).toMatchObject({ clip_high_fraction: 0, clip_low_fraction: 1 });
    expect(at(1.3, -1).dLogprobs[0]?.[1]).toBeCloseTo(1.3, 6);
    expect(at(0.7, 1).dLogprobs[0]?.[1]).toBeCloseTo(-0.7, 6);
  });

  it("pulls towards the reference by k3 and towards entropy", () => {
    const config = reinforce({ klCoefficient: 0.1, entropyBonus: 0.01 });
    const rows = [row({ advantages: [0, 0, 0], referenceLogprobs: [0, -1 + Math.log(2), -2], entropy: [0, 3, 5] })];
    const { loss, dLogprobs, dEntropy, metrics } = computeLoss(rows, config);
    // k3 of ratio 2: 2 − ln 2 − 1; of ratio 1: 0.
    expect(loss).toBeCloseTo((0.1 * (1 - Math.LN2) - 0.01 * 8) / 2, 12);
    expect(metrics.kl_reference).toBeCloseTo((1 - Math.LN2) / 2, 12);
    expect(dLogprobs[0]?.[1]).toBeCloseTo((0.1 * -1) / 2, 7);
    expect(dEntropy).toEqual([Float32Array.of(0, -0.005, -0.005)]);
  });

  it("shares a rollout's weight among the tokens of all its rows with rollout-mean", () => {
    const rows = [
      row({ rollout: 0, advantages: [0, 1, 1] }),
      row({ rollout: 0, advantages: [0, 1, 1] }),
      row({ rollout: 1, lossMask: Uint8Array.of(0, 1, 0), advantages: [0, 1, 0] }),
    ];
    const { dLogprobs } = computeLoss(rows, ppo({ aggregation: "rollout-mean" }));
    expect(dLogprobs.map((each) => [...each])).toEqual([
      [0, -0.125, -0.125],
      [0, -0.125, -0.125],
      [0, -0.5, 0],
    ]);
  });

  it("is nothing for a batch without action tokens", () => {
    const { loss, dLogprobs } = computeLoss([row({ lossMask: Uint8Array.of(0, 0, 0) })], ppo());
    expect(loss).toBe(0);
    expect(dLogprobs).toEqual([Float32Array.of(0, 0, 0)]);
    expect(computeLoss([], ppo()).loss).toBe(0);
  });

  it("names the array that does not fit and the reference that is missing", () => {
    expect(() => computeLoss([row(), row({ advantages: [1] })], ppo())).toThrow("row 1 has 3 tokens and 1 advantages");
    expect(() => computeLoss([row()], ppo({ klCoefficient: 0.1 }))).toThrow("row 0 has no reference logprobs");
  });
});

/** Schema-shaped cases that torch computed; the generator is test/oracle/losses.py. */
const numbers = z.array(z.number());
const fixtureSchema = z.object({
  rows: z.array(
    z.object({
      rollout: z.number(),
      lossMask: numbers,
      advantages: numbers,
      behaviourLogprobs: numbers,
      proximalLogprobs: numbers,
      policyLogprobs: numbers,
      referenceLogprobs: numbers,
      entropy: numbers,
    }),
  ),
  cases: z.array(
    z.object({ config: lossSchema, loss: z.number(), dLogprobs: z.array(numbers), dEntropy: z.array(numbers) }),
  ),
});
const fixture = fixtureSchema.parse(
  JSON.parse(readFileSync(new URL("../../oracle/fixtures/losses.json", import.meta.url), "utf8")),
);
const fixtureRows: LossRow[] = fixture.rows.map((each) => ({ ...each, lossMask: Uint8Array.from(each.lossMask) }));

describe("computeLoss against PyTorch", () => {
  it.each(
    fixture.cases.map(
      ({ config, ...rest }, at) => [`${at}: ${config.type}, KL ${config.klCoefficient}`, { config, ...rest }] as const,
    ),
  )("%s", (_, { config, loss, dLogprobs, dEntropy }) => {
    const ours = computeLoss(fixtureRows, config);
    // Both are double precision; only the order of sums differs.
    expect(Math.abs(ours.loss - loss)).toBeLessThan(1e-12);
    for (const [at, expected] of dLogprobs.entries()) {
      // Our derivatives are handed over in float32: 6e-8 relative.
      expected.forEach((d, t) =>
        expect(Math.abs((ours.dLogprobs[at]?.[t] ?? NaN) - d)).toBeLessThan(1e-7 * (1 + Math.abs(d))),
      );
      dEntropy[at]?.forEach((d, t) => expect(Math.abs((ours.dEntropy?.[at]?.[t] ?? 0) - d)).toBeLessThan(1e-9));
    }
  });

  const python = findPython();
  it.skipIf(python === null)("the committed fixture is what PyTorch computes now", () => {
    expect(runOracle(python ?? "", "losses.py", ["--check"]).trim()).toBe("losses.json agrees");
  });
});

describe("computeLoss by finite differences", () => {
  // Reinforce's weight is a constant of the derivative, so only its unweighted form is the derivative of its value.
  it.each([
    ["ppo-clip", ppo({ klCoefficient: 0.3 })],
    ["ppo-clip, rollout-mean", ppo({ aggregation: "rollout-mean", klCoefficient: 0.1, clipLow: 0.1 })],
    ["reinforce", reinforce({ importance: { type: "none" }, klCoefficient: 0.2 })],
  ])("%s: the derivative is that of the loss", (_, config) => {
    const step = 1e-6;
    for (const [at, own] of fixtureRows.entries()) {
      for (let t = 0; t < own.lossMask.length; t += 1) {
        const moved = (by: number): number => {
          const policyLogprobs = Array.from(own.policyLogprobs, (value, at) => (at === t ? value + by : value));
          return computeLoss(fixtureRows.with(at, { ...own, policyLogprobs }), config).loss;
        };
        const slope = (moved(step) - moved(-step)) / (2 * step);
        // Central differences in double precision: 1e-12 / 1e-6 of rounding, and float32 of ours.
        expect(computeLoss(fixtureRows, config).dLogprobs[at]?.[t]).toBeCloseTo(slope, 5);
      }
    }
  });

  it("below its cap, reinforce's derivative is that of −(π/β)·A", () => {
    const config = reinforce({ importance: { type: "truncated", cap: 1000 } });
    const value = (policyLogprob: number): number => -Math.exp(policyLogprob - -1) * 2;
    const rows = [row({ lossMask: Uint8Array.of(0, 1, 0), policyLogprobs: [0, -0.7, 0] })];
    const slope = (value(-0.7 + 1e-6) - value(-0.7 - 1e-6)) / 2e-6;
    expect(computeLoss(rows, config).dLogprobs[0]?.[1]).toBeCloseTo(slope, 5);
  });
});

describe("computeLoss always", () => {
  it("ignores everything where the mask is 0, and is linear in the advantages where nothing is clipped", () => {
    const value = fc.double({ min: -3, max: -0.01, noNaN: true });
    const token = fc.record({
      bit: fc.nat({ max: 1 }),
      advantage: fc.double({ min: -2, max: 2, noNaN: true }),
      logprob: value,
      junk: value,
    });
    fc.assert(
      fc.property(fc.array(token, { minLength: 1, maxLength: 10 }), (tokens) => {
        const make = (scale: number, junk: boolean): LossRow => {
          const logprobs = tokens.map((each) => (each.bit === 0 && junk ? each.junk : each.logprob));
          return row({
            lossMask: Uint8Array.from(tokens, (each) => each.bit),
            advantages: tokens.map((each) => scale * each.advantage),
            behaviourLogprobs: tokens.map((each) => each.logprob),
            policyLogprobs: logprobs,
          });
        };
        const once = computeLoss([make(1, false)], ppo());
        expect(computeLoss([make(1, true)], ppo())).toEqual(once);
        expect(computeLoss([make(2, false)], ppo()).loss).toBeCloseTo(2 * once.loss, 9);
      }),
    );
  });
});
