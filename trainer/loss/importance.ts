import { z } from "zod";

const cap = z.number().min(1).max(1000).default(2);

/** How samples of an older or slightly different policy are weighed. */
export const importanceSchema = z.discriminatedUnion("type", [
  /** Not at all: as if the weights at the batch's first update had sampled. */
  z.strictObject({ type: z.literal("none") }),
  /** By no weight of its own: ratios are taken to what sampled, as PPO's paper does, and clipped with the rest. */
  z.strictObject({ type: z.literal("ratio") }),
  z.strictObject({
    type: z.literal("truncated"),
    /** Largest weight of a token. */
    cap,
  }),
  /** As `truncated`, and sequences that are too far from what sampled them are left out (sequence-mask.ts). */
  z.strictObject({
    type: z.literal("sequence-mask"),
    cap,
    /** Bounds on the geometric mean of a sequence's π/β. */
    low: z.number().min(0).max(1).default(0.5),
    high: z.number().min(1).max(1000).default(2),
  }),
]);
export type ImportanceConfig = z.infer<typeof importanceSchema>;

/**
 * Truncated importance weight of one token, min(cap, π/β); a constant where derivatives are taken.
 * Without it, plain PPO that was one step stale collapsed a 0.6 B model (marin issue 8955).
 * @param targetLogprob log π, of the policy whose expectation is wanted
 * @param behaviourLogprob log β, of the policy that sampled
 * @see Ionides 2008, Truncated Importance Sampling
 */
export function importanceWeight(
  targetLogprob: number,
  behaviourLogprob: number,
  importance: ImportanceConfig,
): number {
  if (importance.type === "none") return 1;
  // With `ratio`, clipped surrogates pass what sampled as the target, so that they weigh 1.
  const largest = importance.type === "ratio" ? Infinity : importance.cap;
  return Math.min(largest, Math.exp(targetLogprob - behaviourLogprob));
}
