import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema, type LossConfig } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";
import { ALGORITHMS, largestDifference } from "../../oracle/fixtures.ts";
import { findPython, runOracle } from "../../oracle/python.ts";

const rows: readonly LossRow[] = ALGORITHMS.rows;

/** A case in words: what differs between two of them is in its title. */
function titleOf(config: LossConfig): string {
  if (config.type === "dpo") return `dpo, β ${config.klCoefficient}`;
  const importance = config.type === "sft" ? config.imitate : config.importance.type;
  const kl = config.klCoefficient === 0 ? "" : `, ${config.klEstimator} ${config.klCoefficient}`;
  return `${config.type}, ${importance}, ${config.aggregation}${kl}`;
}

const cases = ALGORITHMS.losses.map((each, at) => [`${at}: ${titleOf(each.config)}`, each] as const);

describe("computeLoss against PyTorch", () => {
  it.each(cases)("%s", (_, { config, tokensPerUpdate, loss, dLogprobs, dEntropy }) => {
    const ours = computeLoss(rows, config, { tokensPerUpdate });
    // Both are double precision; sums are taken in another order.
    expect(Math.abs(ours.loss - loss) / Math.max(1, Math.abs(loss))).toBeLessThan(1e-12);
    // Our derivatives are handed over in float32: 6e-8 relative.
    expect(largestDifference(ours.dLogprobs, dLogprobs)).toBeLessThan(1e-7);
    const none = rows.map((row) => new Float32Array(row.lossMask.length));
    expect(largestDifference(ours.dEntropy ?? none, dEntropy)).toBeLessThan(1e-7);
  });

  it("every surrogate, importance, aggregation and estimator is among the cases", () => {
    const configs = ALGORITHMS.losses.map((each) => each.config);
    const seen = (of: (config: LossConfig) => readonly string[]) => [...new Set(configs.flatMap(of))].toSorted();
    expect(seen((config) => [config.type])).toEqual([
      "cispo",
      "dpo",
      "dual-clip",
      "gspo",
      "ppo-clip",
      "reinforce",
      "sft",
    ]);
    expect(seen((config) => ("importance" in config ? [config.importance.type] : []))).toEqual([
      "none",
      "ratio",
      "sequence-mask",
      "truncated",
    ]);
    expect(seen((config) => ("aggregation" in config ? [config.aggregation] : []))).toEqual([
      "batch-mean",
      "rollout-mean",
      "sequence-mean",
      "sequence-sum",
      "token-mean",
    ]);
    expect(seen((config) => ("klEstimator" in config && config.klCoefficient > 0 ? [config.klEstimator] : []))).toEqual(
      ["k1", "k2", "k3"],
    );
  });

  it("the cases reach both clip bounds and the mask", () => {
    const found = ALGORITHMS.losses.map(({ config }) => computeLoss(rows, config).metrics);
    expect(Math.max(...found.map((each) => each.clip_low_fraction))).toBeGreaterThan(0.05);
    expect(Math.max(...found.map((each) => each.clip_high_fraction))).toBeGreaterThan(0.05);
    const masked = found.flatMap((each) => (each.masked_fraction === undefined ? [] : [each.masked_fraction]));
    expect(masked).toHaveLength(2);
    for (const fraction of masked) {
      expect(fraction).toBeGreaterThan(0.05);
      expect(fraction).toBeLessThan(0.8);
    }
  });

  const python = findPython();
  it.skipIf(python === null)("the committed fixture is what PyTorch computes now", () => {
    expect(runOracle(python ?? "", "algorithms.py", ["--check"]).trim()).toBe("algorithms.json agrees");
  });
});

describe("computeLoss by finite differences", () => {
  const configs = ALGORITHMS.losses.map((each, at) => [`${at}: ${titleOf(each.config)}`, each.config] as const);

  it.each(configs)("%s", (_, config) => {
    const { dLogprobs } = computeLoss(rows, config);
    const { rows: held, config: unweighted } = holdWeights(config);
    // Double precision: 1e-16 / 1e-6 of rounding, 1e-12 of curvature; 6e-8 of ours in float32.
    expect(largestDifference(dLogprobs, slopes(held, unweighted))).toBeLessThan(1e-6);
  });

  /**
   * The weights of reinforce and cispo are constants of their derivatives, which are therefore those of reinforce with
   * the weights put into the advantages; the other losses are differentiated as they are.
   */
  function holdWeights(config: LossConfig): { rows: readonly LossRow[]; config: LossConfig } {
    if (config.type !== "reinforce" && config.type !== "cispo") return { rows, config };
    const { importance } = config;
    const isRatio = importance.type === "ratio";
    const cap = "cap" in importance ? importance.cap : Infinity;
    const weighted = ALGORITHMS.rows.map((row) => ({
      ...row,
      advantages: row.advantages.map((advantage, t) => {
        const [policy = 0, proximal = 0] = [row.policyLogprobs[t], row.proximalLogprobs[t]];
        const behaviour = row.behaviourLogprobs[t] ?? 0;
        if (config.type === "reinforce") return advantage * Math.min(cap, Math.exp(policy - behaviour));
        const ratio = Math.exp(policy - (isRatio ? behaviour : proximal));
        const clipped = Math.min(1 + config.clipHigh, Math.max(1 - config.clipLow, ratio));
        return advantage * clipped * (isRatio ? 1 : Math.min(cap, Math.exp(proximal - behaviour)));
      }),
    }));
    const { klCoefficient, klEstimator, aggregation, responseTokens } = config;
    const plain = { type: "reinforce", importance: { type: "none" }, klCoefficient, klEstimator } as const;
    return { rows: weighted, config: lossSchema.parse({ ...plain, aggregation, responseTokens }) };
  }

  /** Central differences of the loss with respect to each row's policy log-probabilities. */
  function slopes(of: readonly LossRow[], config: LossConfig): number[][] {
    const step = 1e-6;
    return of.map((row, at) =>
      Array.from(row.policyLogprobs, (_, t) => {
        const moved = (by: number): number => {
          const policyLogprobs = Array.from(row.policyLogprobs, (value, u) => (u === t ? value + by : value));
          return computeLoss(of.with(at, { ...row, policyLogprobs }), config).loss;
        };
        return (moved(step) - moved(-step)) / (2 * step);
      }),
    );
  }
});
