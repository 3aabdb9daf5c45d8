import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { gae } from "../../../trainer/advantage/gae.ts";

describe("gae", () => {
  it("adds up one-step errors, each a step further away counting γλ as much", () => {
    // Errors: 1 + 0.5·4 − 2 = 1, 0 + 0.5·2 − 4 = −3, 8 + 0.5·0 − 2 = 6; γλ = 0.25.
    const advantages_T = gae([1, 0, 8], [2, 4, 2, 0], { gamma: 0.5, lambda: 0.5 });
    expect([...advantages_T]).toEqual([1 + 0.25 * -1.5, -3 + 0.25 * 6, 6]);
  });

  it("looks past the end only where the last value says so", () => {
    expect([...gae([1], [3, 0], { gamma: 1, lambda: 1 })]).toEqual([-2]);
    expect([...gae([1], [3, 10], { gamma: 0.5, lambda: 1 })]).toEqual([3]);
    expect(gae([], [7], { gamma: 1, lambda: 1 })).toHaveLength(0);
  });

  const number = fc.double({ min: -5, max: 5, noNaN: true });
  const trajectory = fc
    .array(fc.tuple(number, number), { minLength: 1, maxLength: 12 })
    .map((steps) => ({ rewards_T: steps.map(([reward]) => reward), values_T: steps.map(([, value]) => value) }));
  const unit = fc.double({ min: 0, max: 1, noNaN: true });

  it("is the discounted return less the value where λ is 1, whatever the critic says in between", () => {
    fc.assert(
      fc.property(trajectory, unit, number, ({ rewards_T, values_T }, gamma, bootstrap) => {
        const advantages_T = gae(rewards_T, [...values_T, bootstrap], { gamma, lambda: 1 });
        for (const [t, value] of values_T.entries()) {
          const end = rewards_T.length - t;
          const following = rewards_T.slice(t).reduce((sum, reward, k) => sum + gamma ** k * reward, 0);
          expect(advantages_T[t]).toBeCloseTo(following + gamma ** end * bootstrap - value, 9);
        }
      }),
    );
  });

  it("is the one-step error where λ is 0", () => {
    fc.assert(
      fc.property(trajectory, unit, number, ({ rewards_T, values_T }, gamma, bootstrap) => {
        const values_T1 = [...values_T, bootstrap];
        const advantages_T = gae(rewards_T, values_T1, { gamma, lambda: 0 });
        for (const [t, reward] of rewards_T.entries()) {
          expect(advantages_T[t]).toBeCloseTo(reward + gamma * (values_T1[t + 1] ?? NaN) - (values_T1[t] ?? NaN), 12);
        }
      }),
    );
  });

  it("finds nothing better or worse than a critic that foretold every return", () => {
    fc.assert(
      fc.property(trajectory, unit, unit, ({ rewards_T }, gamma, lambda) => {
        const values_T1 = [...rewards_T, 0];
        for (let t = rewards_T.length - 1; t >= 0; t -= 1) {
          values_T1[t] = (rewards_T[t] ?? 0) + gamma * (values_T1[t + 1] ?? 0);
        }
        for (const advantage of gae(rewards_T, values_T1, { gamma, lambda })) expect(advantage).toBeCloseTo(0, 12);
      }),
    );
  });

  it("refuses values that leave out the state after the last action", () => {
    expect(() => gae([1, 2], [1, 2], { gamma: 1, lambda: 1 })).toThrow(
      expect.objectContaining({ code: "ERR_SHAPE", message: expect.stringContaining("3 values") }),
    );
  });
});
