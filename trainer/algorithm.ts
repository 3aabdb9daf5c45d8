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
 * Named algorithms.
 *
 * `group-pg`, ours: group mean without the spread, PPO clip with a higher upper bound, truncated importance sampling,
 * no KL term; every action token of the batch counts the same.
 *
 * `grpo`, the published defaults: (r − mean) / std, clip 0.2, KL 0.04 to the start, every rollout counts the same.
 * @see Shao et al. 2024, arXiv:2402.03300
 */
export const PRESETS = {
  "group-pg": algorithmSchema.parse({}),
  grpo: algorithmSchema.parse({
    credit: { type: "identical" },
    advantage: { type: "group-mean-std" },
    loss: { type: "ppo-clip", clipLow: 0.2, clipHigh: 0.2, klCoefficient: 0.04, aggregation: "rollout-mean" },
  }),
} as const satisfies Record<string, Algorithm>;

export type PresetName = keyof typeof PRESETS;
