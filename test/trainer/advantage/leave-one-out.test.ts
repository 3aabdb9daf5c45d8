import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { advantageSchema, groupAdvantage } from "../../../trainer/advantage/advantage.ts";

const config = advantageSchema.parse({ type: "leave-one-out" });
const group = (...rewards: readonly number[]) => rewards.map((reward) => Float64Array.of(reward));
const advantages = (...rewards: readonly number[]) =>
  groupAdvantage(group(...rewards), config).advantages_RT.map((each) => each[0] ?? NaN);

describe("leave-one-out", () => {
  it("compares a rollout with the mean of the others", () => {
    // 1 − (0 + 0.5)/2, 0 − (1 + 0.5)/2, 0.5 − (1 + 0)/2.
    expect(advantages(1, 0, 0.5)).toEqual([0.75, -0.75, 0]);
  });

  it("takes the other's mean credit as its baseline for each transition", () => {
    const { advantages_RT } = groupAdvantage([Float64Array.of(2, 1), Float64Array.of(0.5)], config);
    expect(advantages_RT.map((each) => [...each])).toEqual([[1.5, 0.5], [-1]]);
  });

  it("is group-mean times n / (n − 1), and never depends on the rollout's own reward but by its value", () => {
    const reward = fc.integer({ min: -8, max: 8 });
    fc.assert(
      fc.property(fc.array(reward, { minLength: 2, maxLength: 8 }), reward, (rewards, other) => {
        fc.pre(new Set(rewards).size > 1);
        const n = rewards.length;
        const mean = groupAdvantage(group(...rewards), { type: "group-mean" }).advantages_RT;
        const ours = advantages(...rewards);
        mean.forEach((each, at) => expect(ours[at]).toBeCloseTo(((each[0] ?? NaN) * n) / (n - 1), 9));
        const changed = rewards.with(0, other);
        fc.pre(new Set(changed).size > 1);
        expect((advantages(...changed)[0] ?? NaN) - other).toBeCloseTo((ours[0] ?? NaN) - (rewards[0] ?? NaN), 9);
      }),
    );
  });

  it("has nothing to say of a rollout alone, nor of equal ones", () => {
    expect(groupAdvantage(group(1), config).flat).toBe(true);
    expect(groupAdvantage(group(0.5, 0.5), config)).toMatchObject({ flat: true, spread: 0 });
  });
});
