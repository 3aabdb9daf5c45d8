import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { airStatus, computeReward, type RewardParts } from "../../../edge/record/reward.ts";

const TOOLS = { memory: 0.3, search: 0.2 };

describe("airStatus", () => {
  const air = (name: string, value: number) => ({ source: "air", name, value });

  it("weighs the mean sign of each of the agent's tools", () => {
    // memory: (+1 −1 +1)/3 = 1/3; search: −1; (0.3·1/3 + 0.2·(−1)) / 0.5 = −0.2
    const rewards = [air("memory", 0.3), air("memory", -0.3), air("memory", 0.3), air("search", -0.2)];
    expect(airStatus(TOOLS, rewards)).toBeCloseTo(-0.2, 12);
  });

  it("counts a tool that was never called as 0, and ignores other rewards", () => {
    expect(airStatus(TOOLS, [air("memory", 0.3)])).toBeCloseTo(0.6, 12);
    expect(airStatus(TOOLS, [{ source: "explicit", name: "memory", value: 1 }, air("calendar", 1)])).toBe(0);
    expect(airStatus({}, [air("memory", 1)])).toBe(0);
  });

  it("stays within −1 and 1", () => {
    const weight = fc.double({ min: 0, max: 1, noNaN: true });
    const seen = fc.record({
      source: fc.constantFrom("air", "judge"),
      name: fc.constantFrom("a", "b", "c"),
      value: fc.double({ min: -1, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(fc.dictionary(fc.constantFrom("a", "b"), weight), fc.array(seen), (tools, rewards) => {
        const status = airStatus(tools, rewards);
        expect(Math.abs(status)).toBeLessThanOrEqual(1 + 1e-9);
      }),
    );
  });
});

describe("computeReward", () => {
  const weights = { tools: TOOLS, alpha: 0.5 };
  const parts: RewardParts = {
    rewards: [{ source: "air", name: "memory", value: 0.3 }],
    verdict: { correctness: 1, format: 0, terminal: 0.9 },
    explicit: undefined,
    feedback: [],
    blend: "terminal alone",
    tools: ["memory"],
  };

  it("weighs status and terminal by alpha, and keeps the parts", () => {
    // status = 0.3·1/0.5 = 0.6; r = 0.5·0.6 + 0.5·0.9
    const { total, terminal, outcome } = computeReward(weights, parts);
    expect(total).toBeCloseTo(0.75, 12);
    expect(terminal).toBe(0.9);
    expect(outcome).toMatchObject({ terminal: 0.9, correctness: 1, format: 0, tools: ["memory"] });
  });

  it("is the terminal reward alone where no tool has weight", () => {
    for (const none of [undefined, { tools: {}, alpha: 0.5 }, { tools: { memory: 0 }, alpha: 0.5 }]) {
      expect(computeReward(none, parts).total).toBe(0.9);
    }
  });

  it("takes a given reward for the verdict's", () => {
    expect(computeReward(undefined, { ...parts, explicit: -2 })).toMatchObject({
      total: -2,
      terminal: -2,
      outcome: { terminal: -2, correctness: 1 },
    });
  });

  it("is the mean feedback where nobody judged, and averages it with the terminal only when asked to blend", () => {
    const feedback = [1, 0];
    const unjudged = { ...parts, verdict: undefined, feedback };
    expect(computeReward(weights, unjudged)).toEqual({ terminal: undefined, total: 0.5, outcome: null });
    expect(computeReward(weights, { ...unjudged, feedback: [] })).toEqual({
      terminal: undefined,
      total: null,
      outcome: null,
    });
    expect(computeReward(undefined, { ...parts, feedback }).total).toBe(0.9);
    // (0.9 + 0.5) / 2
    expect(computeReward(undefined, { ...parts, feedback, blend: "with feedback" })).toMatchObject({
      terminal: 0.9,
      total: 0.7,
      outcome: { terminal: 0.7 },
    });
  });
});
