import { z } from "zod";
import { advantageSchema } from "./advantage/advantage.ts";
import { creditSchema } from "./credit/credit.ts";
import { lossSchema } from "./loss/loss.ts";

/** An algorithm is a record of three choices, each a union on `type`. */
export const algorithmSchema = z.strictObject({
  credit: creditSchema.prefault({ type: "identical" }),
  advantage: advantageSchema.prefault({ type: "group-mean" }),
  loss: lossSchema.prefault({ type: "ppo-clip" }),
});
export type Algorithm = z.infer<typeof algorithmSchema>;

/**
 * What helps to choose, as `fulgur algorithms` shows it: a line each. Sizes and ages are rules of thumb from how a method
 * works, not measurements.
 */
export interface AlgorithmNotes {
  readonly what: string;
  /** Name, authors, year and arXiv number; null where it is ours. */
  readonly paper: string | null;
  readonly when: string;
  /** What it asks of the stream of rollouts. */
  readonly dataRate: string;
  readonly groupSize: string;
  /** How many versions samples may be behind, `--max-staleness`. */
  readonly staleness: string;
}

/** An algorithm that has a name. */
export interface Preset extends Algorithm {
  readonly notes: AlgorithmNotes;
}

/**
 * Named algorithms; docs/ALGORITHMS.md has each one's equations, and where ours departs from them. `lightning` is ours:
 * group mean without the spread, PPO clip with a higher upper bound, truncated importance sampling, no KL term; every
 * action token of the batch counts the same. The others have the defaults of their papers.
 */
export const PRESETS = {
  lightning: {
    ...algorithmSchema.parse({}),
    notes: {
      what: "reward minus the group's mean; PPO clip with a higher upper bound; every token counts the same",
      paper: null,
      when: "the default: start here",
      dataRate: "any; rollouts of groups whose rewards are all equal are spent for nothing",
      groupSize: "4 or more: the group is the baseline",
      staleness: "up to 4, the default: weights are cut off at 2, and the clip bounds several updates of a batch",
    },
  },
  grpo: {
    ...algorithmSchema.parse({
      credit: { type: "identical" },
      advantage: { type: "group-mean-std" },
      loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.2, klCoefficient: 0.04, aggregation: "rollout-mean" },
    }),
    notes: {
      what: "reward minus the group's mean, over its spread; a KL term holds it near the start",
      paper: "GRPO, Shao et al. 2024, arXiv:2402.03300",
      when: "to compare with what is published, or to stay near the start",
      dataRate: "any; the KL term takes a second copy of the base, and scoring of every token",
      groupSize: "8 or more: the spread is an estimate too",
      staleness: "1 or 2: a token's weight is cut off at 2",
    },
  },
  ppo: {
    ...algorithmSchema.parse({
      advantage: { type: "gae" },
      loss: {
        type: "ppo-clip",
        clipLow: 0.2,
        clipHigh: 0.2,
        klCoefficient: 0.001,
        klEstimator: "k1",
        klPlace: "reward",
        aggregation: "token-mean",
      },
    }),
    notes: {
      what: "reward and KL penalty of each answer against a learned critic's values of its tokens, by GAE",
      paper: "PPO, Schulman et al. 2017, arXiv:1707.06347",
      when: "tasks that are tried once or twice each, or long answers whose tokens deserve unequal credit",
      dataRate: "low: no rollout is lost to a group without a spread; every token is scored first, by two models",
      groupSize: "2, the least there is: the critic is the baseline, and more tasks teach more",
      staleness: "1 or 2: a token's weight is cut off at 2",
    },
  },
  "reinforce++": {
    ...algorithmSchema.parse({
      advantage: { type: "batch-mean-std" },
      loss: {
        type: "ppo-clip",
        clipLow: 0.2,
        clipHigh: 0.2,
        klCoefficient: 0.001,
        klEstimator: "k1",
        klPlace: "reward",
        aggregation: "rollout-mean",
      },
    }),
    notes: {
      what: "reward minus a KL penalty, normalised over the whole batch",
      paper: "REINFORCE++, Hu et al. 2025, arXiv:2501.03262",
      when: "tasks that differ little from each other, and rollouts too dear to lose any",
      dataRate: "low: no rollout is lost to a group without a spread; takes a second copy of the base",
      groupSize: "2, the least there is: the batch is the baseline, and more tasks teach more",
      staleness: "1 or 2: a token's weight is cut off at 2",
    },
  },
  "reinforce++-baseline": {
    ...algorithmSchema.parse({
      advantage: { type: "group-mean-batch-std" },
      loss: {
        type: "ppo-clip",
        clipLow: 0.2,
        clipHigh: 0.2,
        klCoefficient: 0.001,
        klEstimator: "k2",
        aggregation: "rollout-mean",
      },
    }),
    notes: {
      what: "reward minus the group's mean, normalised over the batch; a KL term in the loss",
      paper: "REINFORCE++ with baseline, Hu et al. 2025, arXiv:2501.03262",
      when: "tasks of very different difficulty, whose spreads should not be made equal",
      dataRate: "low: groups without a spread stay; takes a second copy of the base",
      groupSize: "4 or more: the group is the baseline",
      staleness: "1 or 2: a token's weight is cut off at 2",
    },
  },
  rloo: {
    ...algorithmSchema.parse({
      advantage: { type: "leave-one-out" },
      loss: { type: "reinforce", aggregation: "sequence-sum" },
    }),
    notes: {
      what: "REINFORCE; each rollout against the mean of the group's others",
      paper: "RLOO, Ahmadian et al. 2024, arXiv:2402.14740",
      when: "the simplest unbiased estimate: fresh samples, one update a batch",
      dataRate: "high: each batch is used once",
      groupSize: "2 or more: the others are the baseline",
      staleness: "0 or 1: nothing but the weights' cap bounds a step",
    },
  },
  "dr-grpo": {
    ...algorithmSchema.parse({
      advantage: { type: "group-mean" },
      loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.2, aggregation: "sequence-sum", responseTokens: 64 },
    }),
    notes: {
      what: "GRPO without its divisions by spread and by length",
      paper: "Dr. GRPO, Liu et al. 2025, arXiv:2503.20783",
      when: "answers of very unequal length, which should not weigh their tokens",
      dataRate: "any; rollouts of groups whose rewards are all equal are spent for nothing",
      groupSize: "4 or more: the group is the baseline",
      staleness: "1 or 2: a token's weight is cut off at 2",
    },
  },
  dapo: {
    ...algorithmSchema.parse({
      credit: { type: "identical", overlong: {} },
      advantage: { type: "group-mean-std" },
      loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.28, aggregation: "token-mean" },
    }),
    notes: {
      what: "GRPO with a higher upper bound, token mean, dynamic sampling, and a punishment of long answers",
      paper: "DAPO, Yu et al. 2025, arXiv:2503.14476",
      when: "long answers that grow to their limit; give --refill-groups room",
      dataRate: "high: what groups without a spread cost is made anew",
      groupSize: "8 or more: the spread is an estimate too",
      staleness: "1 or 2: a token's weight is cut off at 2",
    },
  },
  gspo: {
    ...algorithmSchema.parse({
      advantage: { type: "group-mean-std" },
      loss: { type: "gspo", clipLow: 3e-4, clipHigh: 4e-4, aggregation: "sequence-mean" },
    }),
    notes: {
      what: "one clipped ratio for each answer in place of one for each token",
      paper: "GSPO, Zheng et al. 2025, arXiv:2507.18071",
      when: "long answers, several updates a batch; its bounds are narrow for adapters: see clip_high_fraction",
      dataRate: "low: --updates-per-batch 4 uses each batch more than once",
      groupSize: "8 or more: the spread is an estimate too",
      staleness: "1 or 2: an answer has one weight, cut off at 2; the bounds are around the batch's start",
    },
  },
  cispo: {
    ...algorithmSchema.parse({
      advantage: { type: "group-mean-std" },
      loss: { type: "cispo", clipLow: 1, clipHigh: 4, importance: { type: "ratio" }, aggregation: "token-mean" },
    }),
    notes: {
      what: "REINFORCE whose weights are cut off, so that no token stops pulling",
      paper: "CISPO in MiniMax-M1, MiniMax 2025, arXiv:2506.13585",
      when: "samples of several versions' age, or several updates a batch",
      dataRate: "low: old rollouts and repeated updates stay useful",
      groupSize: "8 or more: the spread is an estimate too",
      staleness: "the most: weights are cut off, and no token is left out",
    },
  },
  sft: {
    ...algorithmSchema.parse({
      advantage: { type: "group-mean" },
      loss: { type: "sft", imitate: "better", aggregation: "token-mean" },
    }),
    notes: {
      what: "cross-entropy of the rollouts that did better than their group's mean; the others say nothing",
      paper: "RAFT, Dong et al. 2023, arXiv:2304.06767",
      when: "the simplest thing to compare with; needs no log-probabilities of what sampled",
      dataRate: "high: what did worse than its group is spent for nothing",
      groupSize: "4 or more: the group says what is good",
      staleness: "any: there is no ratio, but what old versions found good is imitated as it was",
    },
  },
  dpo: {
    ...algorithmSchema.parse({ advantage: { type: "group-mean" }, loss: { type: "dpo", klCoefficient: 0.1 } }),
    notes: {
      what: "each group's best rollout preferred to its worst, by their log-ratios to the start",
      paper: "DPO, Rafailov et al. 2023, arXiv:2305.18290",
      when: "rewards that order rollouts but whose sizes mean little",
      dataRate: "high: a group is one pair; takes a second copy of the base",
      groupSize: "2 or more: with more, best and worst are further apart",
      staleness: "any: there is no ratio to what sampled",
    },
  },
} as const satisfies Record<string, Preset>;

/** What runs where no algorithm is named. */
export const DEFAULT_PRESET = "lightning" satisfies keyof typeof PRESETS;

export type PresetName = keyof typeof PRESETS;
