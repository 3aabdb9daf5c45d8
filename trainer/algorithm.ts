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
 * Named algorithms; docs/ALGORITHMS.md has each one's equations, and where ours departs from them. `group-pg` is ours:
 * group mean without the spread, PPO clip with a higher upper bound, truncated importance sampling, no KL term; every
 * action token of the batch counts the same. The others have the defaults of their papers.
 */
export const PRESETS = {
  "group-pg": algorithmSchema.parse({}),
  grpo: algorithmSchema.parse({
    credit: { type: "identical" },
    advantage: { type: "group-mean-std" },
    loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.2, klCoefficient: 0.04, aggregation: "rollout-mean" },
  }),
  "reinforce++": algorithmSchema.parse({
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
  "reinforce++-baseline": algorithmSchema.parse({
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
  rloo: algorithmSchema.parse({
    advantage: { type: "leave-one-out" },
    loss: { type: "reinforce", aggregation: "sequence-sum" },
  }),
  "dr-grpo": algorithmSchema.parse({
    advantage: { type: "group-mean" },
    loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.2, aggregation: "sequence-sum", responseTokens: 64 },
  }),
  dapo: algorithmSchema.parse({
    credit: { type: "identical", overlong: {} },
    advantage: { type: "group-mean-std" },
    loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.28, aggregation: "token-mean" },
  }),
  gspo: algorithmSchema.parse({
    advantage: { type: "group-mean-std" },
    loss: { type: "gspo", clipLow: 3e-4, clipHigh: 4e-4, aggregation: "sequence-mean" },
  }),
  cispo: algorithmSchema.parse({
    advantage: { type: "group-mean-std" },
    loss: { type: "cispo", clipLow: 1, clipHigh: 4, importance: { type: "ratio" }, aggregation: "token-mean" },
  }),
} as const satisfies Record<string, Algorithm>;

export type PresetName = keyof typeof PRESETS;
