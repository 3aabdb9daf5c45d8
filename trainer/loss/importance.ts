import { z } from "zod";

/** How samples of an older or slightly different policy are weighed. */
export const importanceSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("none") }),
  z.strictObject({
    type: z.literal("truncated"),
    /** Largest weight of a token. */
    cap: z.number().min(1).max(1000).default(2),
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
  return importance.type === "none" ? 1 : Math.min(importance.cap, Math.exp(targetLogprob - behaviourLogprob));
}
