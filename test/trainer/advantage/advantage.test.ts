import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { advantageSchema, groupAdvantage, type AdvantageConfig } from "../../../trainer/advantage/advantage.ts";

const credits = (...rollouts: readonly (readonly number[])[]) => rollouts.map((each) => Float64Array.from(each));
const mean = advantageSchema.parse({ type: "group-mean" });
const meanStd = advantageSchema.parse({ type: "group-mean-std", epsilon: 0 });

describe("groupAdvantage", () => {
  it("subtracts the group's mean", () => {
    const { advantages_RT, mean: average, spread, flat } = groupAdvantage(credits([1, 1], [0], [0.5, 0.5, 0.5]), mean);
    expect(average).toBe(0.5);
    expect(spread).toBe(0.5);
    expect(flat).toBe(false);
    expect(advantages_RT.map((each) => [...each])).toEqual([[0.5, 0.5], [-0.5], [0, 0, 0]]);
  });

  it("divides by the sample standard deviation where asked to", () => {
    const { advantages_RT } = groupAdvantage(credits([1], [0], [0.5]), meanStd);
    expect(advantages_RT.map((each) => [...each])).toEqual([[1], [-1], [0]]);
  });

  it("counts a rollout once, however many transitions it has", () => {
    const long = groupAdvantage(credits([1, 1, 1, 1, 1, 1], [0]), mean);
    expect(long.mean).toBe(0.5);
    expect(long.advantages_RT[1]).toEqual(Float64Array.of(-0.5));
  });

  it("flags groups that are equal but for float noise and gives them nothing", () => {
    const { advantages_RT, flat, spread } = groupAdvantage(credits([0.7], [0.7 + 1e-9], [0.7]), meanStd);
    expect(flat).toBe(true);
    expect(spread).toBeLessThan(1e-8);
    expect(advantages_RT.map((each) => [...each])).toEqual([[0], [0], [0]]);
    expect(groupAdvantage(credits([0.7]), mean).flat).toBe(true);
    expect(groupAdvantage([], mean).flat).toBe(true);
  });

  it("ignores a shift of all rewards, and with the spread also their scale", () => {
    const group = fc.array(fc.integer({ min: -8, max: 8 }), { minLength: 2, maxLength: 8 });
    fc.assert(
      fc.property(group, fc.integer({ min: -8, max: 8 }), fc.integer({ min: 1, max: 8 }), (rewards, shift, scale) => {
        const of = (values: readonly number[], config: AdvantageConfig) =>
          groupAdvantage(credits(...values.map((value) => [value])), config).advantages_RT.map(
            (each) => each[0] ?? NaN,
          );
        const shifted = of(
          rewards.map((reward) => reward + shift),
          mean,
        );
        of(rewards, mean).forEach((advantage, at) => expect(shifted[at]).toBeCloseTo(advantage, 9));
        const scaled = of(
          rewards.map((reward) => reward * scale),
          meanStd,
        );
        of(rewards, meanStd).forEach((advantage, at) => expect(scaled[at]).toBeCloseTo(advantage, 9));
        expect(of(rewards, mean).reduce((sum, advantage) => sum + advantage, 0)).toBeCloseTo(0, 9);
      }),
    );
  });
});
