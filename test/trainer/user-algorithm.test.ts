import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { ROOT } from "../../cli/root.ts";
import mine from "../../examples/algorithms/median-soft-clip.ts";
import { groupAdvantage } from "../../trainer/advantage/advantage.ts";
import { algorithmOf, parseFlags } from "../../trainer/config.ts";
import { assignCredit } from "../../trainer/credit/credit.ts";
import { computeLoss } from "../../trainer/loss/loss.ts";
import type { LossRow } from "../../trainer/loss/loss-row.ts";
import { isModulePath, loadUserAlgorithm, parseUserAlgorithm, userAlgorithm } from "../../trainer/user-algorithm.ts";

const EXAMPLE = join(ROOT, "examples/algorithms/median-soft-clip.ts");

const rewards = { total: 1, terminal: 1, intermediate_T: [0, 0], responseTokens_T: [3, 4] };

function row(policyLogprobs: readonly number[], advantages: readonly number[]): LossRow {
  return {
    rollout: 0,
    lossMask: Uint8Array.from(policyLogprobs, () => 1),
    advantages,
    behaviourLogprobs: policyLogprobs.map(() => -1.2),
    proximalLogprobs: policyLogprobs.map(() => -1),
    policyLogprobs,
  };
}

it.each([
  ["./mine.ts", true],
  ["mine.js", true],
  ["/abs/mine.mts", true],
  ["C:\\mine", true],
  ["grpo", false],
  ["reinforce++-baseline", false],
])("%s is a module's path: %s", (name, isPath) => {
  expect(isModulePath(name)).toBe(isPath);
});

describe("a module of one's own", () => {
  it("is what the configuration's algorithm is, once it has been loaded, with flags in its place", async () => {
    const config = parseFlags(["--run", "1", "--algorithm", EXAMPLE, "--kl-coefficient", "0.01"]);
    await loadUserAlgorithm(EXAMPLE);
    const { credit, advantage, loss } = algorithmOf(config);
    expect(credit).toEqual({ type: "identical" });
    expect(advantage).toMatchObject({ type: "custom", compute: mine.advantage });
    expect(loss).toMatchObject({ type: "custom", term: mine.loss, klCoefficient: 0.01, aggregation: "token-mean" });
    expect(userAlgorithm(EXAMPLE).loss.klCoefficient).toBe(0);
  });

  it("must have been loaded", () => {
    const config = parseFlags(["--run", "1", "--algorithm", "./other.ts"]);
    expect(() => algorithmOf(config)).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
  });

  it("takes functions and settings alike, and has our defaults for what it leaves out", () => {
    const algorithm = parseUserAlgorithm(
      {
        credit: () => [1, 2],
        loss: { type: "custom", term: () => ({ loss: 0, dLogprob: 0 }), aggregation: "sequence-mean" },
      },
      "x.ts",
    );
    expect(assignCredit(rewards, algorithm.credit)).toEqual(Float64Array.of(1, 2));
    expect(algorithm.advantage).toEqual({ type: "group-mean" });
    expect(algorithm.loss).toMatchObject({ type: "custom", aggregation: "sequence-mean" });
    expect(parseUserAlgorithm({}, "x.ts").loss.type).toBe("ppo-clip");
  });

  it.each([
    [undefined, "expected object"],
    [{ lose: () => 0 }, 'Unrecognized key: "lose"'],
    [{ loss: 7 }, "loss: "],
    [{ credit: { type: "idle" } }, "credit.type: "],
    [{ advantage: { type: "custom", compute: 3 } }, "advantage.compute: wanted a function"],
  ])("is refused with its reason: %j", (given, sentence) => {
    expect(() => parseUserAlgorithm(given, "./mine.ts")).toThrow(
      expect.objectContaining({
        code: "ERR_CONFIG",
        message: expect.stringMatching(/^--algorithm \.\/mine\.ts: the module is to export default /),
      }),
    );
    expect(() => parseUserAlgorithm(given, "./mine.ts")).toThrow(sentence);
  });

  it("that is not there, or does not load, is one sentence", async () => {
    await expect(loadUserAlgorithm("./no-such.ts")).rejects.toThrow("there is no file /");
    await expect(loadUserAlgorithm(join(ROOT, "README.md"))).rejects.toThrow("could not be loaded: ");
  });

  it("that gives what cannot be trained on is stopped at once", () => {
    const custom = (compute: () => number[]) => ({ type: "custom" as const, compute });
    expect(() =>
      assignCredit(
        rewards,
        custom(() => [1]),
      ),
    ).toThrow("2 finite numbers for a rollout of 2 transitions, and gave [1]");
    expect(() =>
      assignCredit(
        rewards,
        custom(() => [1, Number.NaN]),
      ),
    ).toThrow("[1, NaN]");
    const group = [Float64Array.of(1, 1), Float64Array.of(0)];
    expect(() => groupAdvantage(group, { type: "custom", compute: () => [[1], [0]] })).toThrow(
      "[2, 1] for the group's rollouts, and gave [1, 1]",
    );
    const { loss } = parseUserAlgorithm({ loss: () => ({ loss: 1, dLogprob: Infinity }) }, "x.ts");
    expect(() => computeLoss([row([-1], [1])], loss)).toThrow("{ loss, dLogprob }, both finite");
  });

  it("drops a group that it gives nothing but zeros, and no other", () => {
    const zero = {
      type: "custom" as const,
      compute: (credits: readonly Float64Array[]) => credits.map((each) => each.map(() => 1e-12)),
    };
    expect(groupAdvantage([Float64Array.of(1), Float64Array.of(0)], zero).flat).toBe(true);
    const own = { type: "custom" as const, compute: (credits: readonly Float64Array[]) => credits };
    expect(groupAdvantage([Float64Array.of(1), Float64Array.of(1)], own)).toMatchObject({
      flat: false,
      mean: 1,
      spread: 0,
    });
    expect(groupAdvantage([], own).flat).toBe(true);
  });
});

describe("examples/algorithms/median-soft-clip.ts", () => {
  it("compares with the median, each rollout counting once", () => {
    const algorithm = parseUserAlgorithm(mine, EXAMPLE);
    const { advantages_RT } = groupAdvantage(
      [Float64Array.of(1, 1), Float64Array.of(0), Float64Array.of(0.25), Float64Array.of(0.75, 0.25)],
      algorithm.advantage,
    );
    // Means 1, 0, 0.25, 0.5: the median is 0.375.
    expect(advantages_RT.map((each) => [...each])).toEqual([[0.625, 0.625], [-0.375], [-0.125], [0.375, -0.125]]);
  });

  it("has the derivative of its loss, near and far from a ratio of 1", () => {
    const { loss } = parseUserAlgorithm(mine, EXAMPLE);
    const at = (logprob: number, advantage: number) => computeLoss([row([logprob], [advantage])], loss);
    const step = 1e-5;
    for (const logprob of [-2, -1.1, -1, -0.9, -0.3]) {
      for (const advantage of [-1.5, 0.7]) {
        const difference = (at(logprob + step, advantage).loss - at(logprob - step, advantage).loss) / (2 * step);
        expect(at(logprob, advantage).dLogprobs[0]?.[0]).toBeCloseTo(difference, 6);
      }
    }
  });

  it("pulls as PPO does where the ratio is 1, and hardly where it is far", () => {
    const { loss } = parseUserAlgorithm(mine, EXAMPLE);
    const pull = (logprob: number): number => computeLoss([row([logprob], [1])], loss).dLogprobs[0]?.[0] ?? Number.NaN;
    expect(pull(-1)).toBeCloseTo(-Math.exp(0.2), 6);
    expect(Math.abs(pull(-0.2))).toBeLessThan(0.02);
  });
});
