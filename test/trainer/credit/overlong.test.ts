import { describe, expect, it } from "vitest";
import { assignCredit, creditSchema } from "../../../trainer/credit/credit.ts";
import { overlongPunishment, overlongSchema } from "../../../trainer/credit/overlong.ts";
import { ALGORITHMS } from "../../oracle/fixtures.ts";

describe("overlongPunishment", () => {
  it("is nothing up to the cache, then falls linearly to −1 at the limit and stays there", () => {
    const at = (tokens: number) => overlongPunishment(tokens, { maxTokens: 20, cacheTokens: 10 });
    expect([0, 10, 12, 15, 20, 90].map(at)).toEqual([0, 0, -0.2, -0.5, -1, -1]);
  });

  it("has the paper's lengths: 16,384 tokens are free, 20,480 cost 1", () => {
    const paper = overlongSchema.parse({});
    expect([16_384, 18_432, 20_480].map((tokens) => overlongPunishment(tokens, paper))).toEqual([0, -0.5, -1]);
  });

  it("is what PyTorch computes", () => {
    const { lengths, punishments, ...config } = ALGORITHMS.overlong;
    lengths.forEach((tokens, at) => {
      expect(overlongPunishment(tokens, config)).toBeCloseTo(punishments[at] ?? NaN, 12);
    });
  });

  it("is for the answer that was long, and for no other of the rollout", () => {
    const config = creditSchema.parse({ type: "identical", overlong: { maxTokens: 20, cacheTokens: 10 } });
    const rewards = { total: 1, terminal: 1, intermediate_T: [0, 0, 0], responseTokens_T: [3, 15, 40] };
    expect([...assignCredit(rewards, config)]).toEqual([1, 0.5, 0]);
  });

  it("asks for the lengths where they are missing", () => {
    const config = creditSchema.parse({ type: "identical", overlong: {} });
    expect(() => assignCredit({ total: 1, terminal: 1, intermediate_T: [0, 0] }, config)).toThrow(
      "wants the lengths of 2 answers, and 0 came",
    );
  });
});
