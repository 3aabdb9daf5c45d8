import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { advantageSchema, groupAdvantage } from "../../../trainer/advantage/advantage.ts";
import {
  baselineStateSchema,
  compareLone,
  loneAdvantages,
  NO_BASELINE,
  type LoneConfig,
} from "../../../trainer/advantage/lone-baseline.ts";

const credits = (...rewards: readonly number[]) => rewards.map((reward) => Float64Array.of(reward, reward));
const firsts = (advantages_RT: readonly Float64Array[]) => advantages_RT.map((each) => each[0]);
const ema: LoneConfig = { type: "ema", decay: 0.5 };

describe("loneAdvantages", () => {
  it("compares with the batch's other lone rollouts", () => {
    const { advantages_RT, state } = loneAdvantages(credits(1, 0, 0.5), { type: "batch" }, NO_BASELINE);
    expect(firsts(advantages_RT)).toEqual([0.75, -0.75, 0]);
    expect(state).toBe(NO_BASELINE);
  });

  it("compares with what was earned before, and remembers this batch for the next", () => {
    const before = { mean: 0.25, rollouts: 10 };
    const { advantages_RT, state } = loneAdvantages(credits(1, 0), ema, before);
    expect(firsts(advantages_RT)).toEqual([0.75, -0.25]);
    // 0.25 → 0.625 → 0.3125.
    expect(state).toEqual({ mean: 0.3125, rollouts: 12 });
  });

  it("begins with a plain mean, and with the batch's own others as there is none before", () => {
    const { advantages_RT, state } = loneAdvantages(credits(1, 0), { type: "ema", decay: 0.99 }, NO_BASELINE);
    expect(firsts(advantages_RT)).toEqual([1, -1]);
    expect(state).toEqual({ mean: 0.5, rollouts: 2 });
  });

  it("has nothing to say of the very first rollout alone", () => {
    for (const config of [ema, { type: "batch" } as const]) {
      expect(firsts(loneAdvantages(credits(1), config, NO_BASELINE).advantages_RT)).toEqual([0]);
    }
    expect(loneAdvantages([], ema, NO_BASELINE)).toEqual({ advantages_RT: [], state: NO_BASELINE });
  });

  it("is the same in one process and in two, whose state went through JSON", () => {
    const rewards = fc.array(fc.double({ min: -1, max: 1, noNaN: true }), { minLength: 1, maxLength: 6 });
    fc.assert(
      fc.property(rewards, rewards, (first, second) => {
        const after = loneAdvantages(credits(...first), ema, NO_BASELINE).state;
        const resumed = baselineStateSchema.parse(JSON.parse(JSON.stringify(after)));
        expect(loneAdvantages(credits(...second), ema, resumed)).toEqual(
          loneAdvantages(credits(...second), ema, after),
        );
      }),
    );
  });

  it("settles at the mean reward, so that advantages do too at 0", () => {
    let state = NO_BASELINE;
    for (let batch = 0; batch < 50; batch += 1)
      state = loneAdvantages(credits(1, 0), { type: "ema", decay: 0.9 }, state).state;
    // The last rollout weighs a tenth: 0.5 less half of that.
    expect(Math.abs(state.mean - 0.5)).toBeLessThan(0.05);
  });
});

describe("compareLone", () => {
  it("leaves groups of several as they are and compares the lone ones among themselves", () => {
    const config = advantageSchema.parse({ type: "group-mean", alone: { type: "batch" } });
    const group = (name: string, ...rewards: readonly number[]) => {
      const { advantages_RT, flat } = groupAdvantage(credits(...rewards), config);
      return { flat, rollouts: advantages_RT.map((advantages_T, at) => ({ name: `${name}${at}`, advantages_T })) };
    };
    const groups = [group("a", 1, 0), group("b", 1), group("c", 0)];
    expect(groups.map((each) => each.flat)).toEqual([false, false, false]);
    const { rollouts_GR } = compareLone(groups, { type: "batch" }, NO_BASELINE);
    expect(rollouts_GR[0]?.[0]).toBe(groups[0]?.rollouts[0]);
    expect(rollouts_GR.map((each) => each.map(({ name, advantages_T }) => [name, advantages_T[0]]))).toEqual([
      [
        ["a0", 0.5],
        ["a1", -0.5],
      ],
      [["b0", 1]],
      [["c0", -1]],
    ]);
  });

  it("is only for those that ask: a lone rollout is flat by default", () => {
    expect(groupAdvantage(credits(1), { type: "group-mean" })).toMatchObject({ flat: true });
    expect(firsts(groupAdvantage(credits(1), { type: "group-mean" }).advantages_RT)).toEqual([0]);
  });
});
