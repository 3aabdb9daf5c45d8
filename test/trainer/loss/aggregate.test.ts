import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { AGGREGATIONS, tokenWeights, type AggregateOptions } from "../../../trainer/loss/aggregate.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";

function row(rollout: number, sequenceOfToken: readonly number[]): LossRow {
  const zeros = sequenceOfToken.map(() => 0);
  const lossMask = Uint8Array.from(sequenceOfToken, (sequence) => (sequence < 0 ? 0 : 1));
  return { rollout, sequenceOfToken, lossMask, advantages: zeros, behaviourLogprobs: zeros, policyLogprobs: zeros };
}

/** Rollout 0: answers of 2 and 1 tokens in a row, one of 3 in another. Rollout 1: one answer of 2. */
const rows = [row(0, [-1, 0, 0, -1, 1]), row(0, [2, 2, 2]), row(1, [-1, 0, 0])];
const weights = (options: AggregateOptions, of: readonly LossRow[] = rows) =>
  tokenWeights(of, options).map((weights_T, at) => [...weights_T].filter((_, t) => of[at]?.lossMask[t] === 1));

describe("tokenWeights", () => {
  it("token-mean: every token alike", () => {
    expect(weights({ aggregation: "token-mean" })).toEqual([
      [1 / 8, 1 / 8, 1 / 8],
      [1 / 8, 1 / 8, 1 / 8],
      [1 / 8, 1 / 8],
    ]);
  });

  it("batch-mean: as many as an update of the batch has, so that a smaller update pulls less", () => {
    expect(weights({ aggregation: "batch-mean", tokensPerUpdate: 16 }).flat()).toEqual(Array(8).fill(1 / 16));
    expect(weights({ aggregation: "batch-mean" })).toEqual(weights({ aggregation: "token-mean" }));
  });

  it("sequence-mean: every answer alike", () => {
    expect(weights({ aggregation: "sequence-mean" })).toEqual([
      [1 / 8, 1 / 8, 1 / 4],
      [1 / 12, 1 / 12, 1 / 12],
      [1 / 8, 1 / 8],
    ]);
  });

  it("sequence-sum: a constant, whatever an answer's length", () => {
    expect(weights({ aggregation: "sequence-sum", responseTokens: 10 }).flat()).toEqual(Array(8).fill(1 / 40));
    expect(weights({ aggregation: "sequence-sum" }).flat()).toEqual(Array(8).fill(1 / 4));
  });

  it("rollout-mean: every rollout alike", () => {
    expect(weights({ aggregation: "rollout-mean" })).toEqual([
      [1 / 12, 1 / 12, 1 / 12],
      [1 / 12, 1 / 12, 1 / 12],
      [1 / 4, 1 / 4],
    ]);
  });

  it.each(AGGREGATIONS)("%s: means add up to 1, and no tokens weigh nothing", (aggregation) => {
    const sequences = fc.array(fc.integer({ min: -1, max: 3 }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat({ max: 3 }), sequences), { maxLength: 6 }), (drawn) => {
        const own = drawn.map(([rollout, sequenceOfToken]) => row(rollout, sequenceOfToken));
        const all = weights({ aggregation }, own).flat();
        const sum = all.reduce((total, weight) => total + weight, 0);
        const answers = drawn.flatMap(([, each]) => [...new Set(each.filter((sequence) => sequence >= 0))]).length;
        const wanted = aggregation === "sequence-sum" ? all.length / Math.max(1, answers) : Math.sign(all.length);
        expect(sum).toBeCloseTo(wanted, 9);
      }),
    );
  });
});
