import { describe, expect, it } from "vitest";
import { algorithmOf, parseFlags } from "../../trainer/config.ts";

const algorithm = (...flags: string[]) => algorithmOf(parseFlags(["--run", "1", ...flags]));

describe("flags in place of a part of the algorithm", () => {
  it("change one number and leave the rest as the preset has it", () => {
    const grpo = algorithm("--algorithm", "grpo");
    const changed = algorithm("--algorithm", "grpo", "--clip-high", "0.28", "--importance", "none");
    expect(changed).toEqual({ ...grpo, loss: { ...grpo.loss, clipHigh: 0.28, importance: { type: "none" } } });
  });

  it("a surrogate of another type keeps KL and aggregation, and has its own bounds", () => {
    expect(algorithm("--algorithm", "grpo", "--loss", "gspo").loss).toMatchObject({
      type: "gspo",
      clipLow: 3e-4,
      clipHigh: 4e-4,
      klCoefficient: 0.04,
      aggregation: "rollout-mean",
      importance: { type: "truncated", cap: 2 },
    });
    expect(algorithm("--loss", "dual-clip", "--clip-high", "0.5").loss).toMatchObject({ clipHigh: 0.5, bound: 3 });
    expect(algorithm("--loss", "reinforce").loss).not.toHaveProperty("clipLow");
    expect(algorithm("--loss", "dpo").loss).toEqual({ type: "dpo", klCoefficient: 0.1 });
    expect(algorithm("--algorithm", "reinforce++", "--advantage", "group-mean-std").advantage).toEqual({
      type: "group-mean-std",
      epsilon: 1e-6,
    });
    expect(algorithm("--loss", "sft").loss).toMatchObject({ type: "sft", imitate: "better" });
  });

  it("credit keeps its shaping, and takes a discount", () => {
    expect(algorithm("--algorithm", "dapo", "--credit", "discounted", "--gamma", "0.9").credit).toEqual({
      type: "discounted",
      gamma: 0.9,
      overlong: { maxTokens: 20_480, cacheTokens: 4096 },
    });
    expect(algorithm("--credit", "air", "--terminal-weight", "2").credit).toEqual({
      type: "air",
      gamma: 1,
      terminalWeight: 2,
    });
  });

  it("overlong punishes from so many tokens on, growing over all of them or as many as are said", () => {
    expect(algorithm("--overlong", "64").credit.overlong).toEqual({ maxTokens: 64, cacheTokens: 64 });
    expect(algorithm("--overlong", "64", "--overlong-cache", "16").credit.overlong).toEqual({
      maxTokens: 64,
      cacheTokens: 16,
    });
    expect(algorithm("--algorithm", "dapo", "--overlong-cache", "16").credit.overlong).toEqual({
      maxTokens: 20_480,
      cacheTokens: 16,
    });
  });

  it("importance keeps its cap, which masks have too", () => {
    const { loss } = algorithm("--importance", "sequence-mask", "--importance-cap", "5");
    expect(loss).toMatchObject({ importance: { type: "sequence-mask", cap: 5, low: 0.5, high: 2 } });
  });

  it("the other choices have flags too", () => {
    const flags = ["--advantage", "leave-one-out", "--aggregation", "sequence-sum", "--response-tokens", "64"];
    const kl = ["--kl-coefficient", "0.001", "--kl-estimator", "k1", "--kl-place", "reward", "--entropy-bonus", "0.01"];
    expect(algorithm(...flags, ...kl)).toMatchObject({
      advantage: { type: "leave-one-out" },
      loss: {
        aggregation: "sequence-sum",
        responseTokens: 64,
        klCoefficient: 0.001,
        klEstimator: "k1",
        klPlace: "reward",
        entropyBonus: 0.01,
      },
    });
  });

  it("the critic's constants are set one by one, where there is a critic", () => {
    const { advantage } = algorithm("--algorithm", "ppo");
    expect(advantage).toMatchObject({ gamma: 1, lambda: 1, value: { coefficient: 0.5, clip: 0.2 } });
    expect(algorithm("--algorithm", "ppo", "--gae-lambda", "0.95", "--value-clip", "0.5").advantage).toEqual({
      ...advantage,
      lambda: 0.95,
      value: { coefficient: 0.5, clip: 0.5 },
    });
    const flags = ["--advantage", "gae", "--gae-gamma", "0.99", "--value-coefficient", "1"];
    expect(algorithm(...flags).advantage).toEqual({ ...advantage, gamma: 0.99, value: { coefficient: 1, clip: 0.2 } });
    // The credit's discount is another one.
    expect(algorithm("--algorithm", "ppo", "--credit", "discounted", "--gamma", "0.9")).toMatchObject({
      credit: { gamma: 0.9 },
      advantage: { gamma: 1 },
    });
  });

  it.each([
    [["--gae-gamma", "0.9"], "--gae-gamma: group-mean has no such setting"],
    [["--algorithm", "grpo", "--gae-lambda", "0.9"], "--gae-lambda: group-mean-std has no such setting"],
    [["--value-clip", "0.3"], "--value-clip: group-mean has no such setting"],
    [["--algorithm", "rloo", "--value-coefficient", "1"], "--value-coefficient: leave-one-out has no such setting"],
    [["--algorithm", "ppo", "--value-clip", "0"], "--value-clip: wanted a number above 0 and at most 1000000, 0 came"],
    [["--algorithm", "ppo", "--gae-lambda", "1.5"], "--gae-lambda: wanted a number from 0 to 1, 1.5 came"],
    [["--loss", "reinforce", "--clip-low", "0.1"], "--clip-low: reinforce has no such setting"],
    [["--gamma", "0.9"], "--gamma: identical has no such setting"],
    [["--importance", "none", "--importance-cap", "3"], "--importance-cap: none has no such setting"],
    [["--overlong-cache", "3"], "--overlong-cache: wanted --overlong beside it"],
    [["--loss", "dpo", "--kl-coefficient", "0"], "--kl-coefficient: Too small"],
    [["--loss", "custom"], "--loss: "],
    [["--algorithm", "gpro"], "--algorithm: wanted "],
  ])("%j is refused when the flags are parsed", (flags, sentence) => {
    expect(() => parseFlags(["--run", "1", ...flags])).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(sentence) }),
    );
  });
});
