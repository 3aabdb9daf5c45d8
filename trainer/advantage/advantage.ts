import { z } from "zod";
import { groupMean } from "./group-mean.ts";
import { groupMeanStd } from "./group-mean-std.ts";

/**
 * Advantage: from the credits of a group's rollouts to how much better than its group each transition did.
 * Statistics are over rollouts, each counting once however many transitions or rows it has, and never over turn
 * numbers: where the policy chooses how many turns it takes, a baseline per turn number is biased.
 */

export const advantageSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("group-mean") }),
  z.strictObject({
    type: z.literal("group-mean-std"),
    /** Added to the standard deviation before dividing, in units of reward. */
    epsilon: z.number().min(0).max(1).default(1e-6),
  }),
]);
export type AdvantageConfig = z.infer<typeof advantageSchema>;

/** Below this spread (standard deviation, in units of reward) rewards are equal but for float noise. */
export const MIN_SPREAD = 1e-3;

export interface GroupAdvantage {
  /** [R][T]; as the credits came. */
  readonly advantages_RT: readonly Float64Array[];
  readonly mean: number;
  /** Sample standard deviation of the rollouts' mean credits; 0 for a group of one. */
  readonly spread: number;
  /** The spread is below {@link MIN_SPREAD}: nothing can be learned from the group, its advantages are all 0. */
  readonly flat: boolean;
}

/**
 * Advantages of the rollouts of one task.
 * @param credits_RT credits of each rollout's transitions; a rollout without transitions is not allowed
 */
export function groupAdvantage(credits_RT: readonly Float64Array[], config: AdvantageConfig): GroupAdvantage {
  const { mean, spread } = groupStatistics(credits_RT);
  const flat = spread < MIN_SPREAD;
  if (flat) return { advantages_RT: credits_RT.map((each) => new Float64Array(each.length)), mean, spread, flat };
  const advantages_RT =
    config.type === "group-mean"
      ? groupMean(credits_RT, mean)
      : groupMeanStd(credits_RT, { mean, spread, epsilon: config.epsilon });
  return { advantages_RT, mean, spread, flat };
}

function groupStatistics(credits_RT: readonly Float64Array[]): { mean: number; spread: number } {
  const means_R = credits_RT.map((credits_T) => average(credits_T));
  const mean = average(means_R);
  const squares = means_R.reduce((sum, each) => sum + (each - mean) ** 2, 0);
  return { mean, spread: means_R.length < 2 ? 0 : Math.sqrt(squares / (means_R.length - 1)) };
}

function average(values: ArrayLike<number>): number {
  let sum = 0;
  for (let at = 0; at < values.length; at += 1) sum += values[at] ?? 0;
  return values.length === 0 ? 0 : sum / values.length;
}
