import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { assignCredit, creditSchema } from "../../../trainer/credit/credit.ts";

const rewards = { total: 0.8, terminal: 1, intermediate_T: [0.3, -0.2, 0] };

describe("assignCredit", () => {
  it("identical gives the whole reward to every transition", () => {
    expect([...assignCredit(rewards, creditSchema.parse({ type: "identical" }))]).toEqual([0.8, 0.8, 0.8]);
  });

  it("discounted discounts the reward by the distance to the end", () => {
    const credits = assignCredit(rewards, creditSchema.parse({ type: "discounted", gamma: 0.5 }));
    expect([...credits]).toEqual([0.2, 0.4, 0.8]);
  });

  it("air sums what follows: each tool's reward counts for its call and those before it", () => {
    // From the end: 1; −0.2 + 1; 0.3 − 0.2 + 1.
    const credits = assignCredit(rewards, creditSchema.parse({ type: "air" }));
    expect(credits[0]).toBeCloseTo(1.1, 12);
    expect(credits[1]).toBeCloseTo(0.8, 12);
    expect(credits[2]).toBe(1);
  });

  it("air discounts and weighs", () => {
    const credits = assignCredit(rewards, creditSchema.parse({ type: "air", gamma: 0.5, terminalWeight: 2 }));
    // 2; −0.2 + 0.5·2; 0.3 + 0.5·0.8.
    expect([...credits].map((credit) => credit.toFixed(10))).toEqual(["0.7000000000", "0.8000000000", "2.0000000000"]);
  });

  it("discounted without discount is identical, and a rollout without transitions has no credits", () => {
    fc.assert(
      fc.property(fc.double({ min: -10, max: 10, noNaN: true }), fc.integer({ min: 0, max: 8 }), (drawn, T) => {
        const total = drawn + 0; // −0 becomes 0: a sum never gives −0, and toEqual tells them apart
        const rollout = { total, terminal: total, intermediate_T: Array.from({ length: T }, () => 0) };
        const discounted = assignCredit(rollout, { type: "discounted", gamma: 1 });
        expect(discounted).toEqual(assignCredit(rollout, { type: "identical" }));
        expect(discounted).toHaveLength(T);
        // With nothing in between, air's return-to-go is the terminal reward throughout.
        expect(assignCredit(rollout, { type: "air", gamma: 1, terminalWeight: 1 })).toEqual(discounted);
      }),
    );
  });

  it("refuses a discount over 1 and unknown fields", () => {
    expect(creditSchema.safeParse({ type: "discounted", gamma: 1.1 }).success).toBe(false);
    expect(creditSchema.safeParse({ type: "identical", gamma: 1 }).success).toBe(false);
  });
});
