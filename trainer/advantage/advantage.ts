import { z } from "zod";
import { customAdvantage, type AdvantageFunction } from "./custom.ts";
import { groupMean } from "./group-mean.ts";
import { groupMeanStd } from "./group-mean-std.ts";
import { leaveOneOut } from "./leave-one-out.ts";
import { loneSchema } from "./lone-baseline.ts";
import { whiten, type WhitenRow } from "./whiten.ts";

/**
 * Advantage: from the credits of a group's rollouts to how much better than its group each transition did.
 * Statistics are over rollouts, each counting once however many transitions or rows it has, and never over turn
 * numbers: where the policy chooses how many turns it takes, a baseline per turn number is biased.
 *
 * Two stages: `groupAdvantage` sees one group, `normaliseBatch` the whole batch once it is gathered. A method is a file
 * here, a member of the schema and a line of one of the two.
 */

/** For methods in units of reward: what a rollout that is alone in its group is compared with; absent drops it. */
const lone = { alone: loneSchema.optional() };

/** Added to the variance before dividing, in units of reward squared. */
const varianceFloor = { epsilon: z.number().min(0).max(1).default(1e-8) };

export const advantageSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("group-mean"), ...lone }),
  z.strictObject({
    type: z.literal("group-mean-std"),
    /** Added to the standard deviation before dividing, in units of reward. */
    epsilon: z.number().min(0).max(1).default(1e-6),
  }),
  z.strictObject({ type: z.literal("leave-one-out"), ...lone }),
  /** Credit as it is, normalised over the batch: no groups are needed. */
  z.strictObject({ type: z.literal("batch-mean-std"), ...varianceFloor }),
  /** Credit minus the group's mean, normalised over the batch. */
  z.strictObject({ type: z.literal("group-mean-batch-std"), ...varianceFloor }),
  /** Credit less what a learned critic expected (critic.ts), normalised over the batch: no groups are needed. */
  z.strictObject({
    type: z.literal("gae"),
    /** Discount for each token between an action and the end of its answer. */
    gamma: z.number().min(0).max(1).default(1),
    /** How far rewards are followed before the critic is believed: 1 is to the end of the answer. */
    lambda: z.number().min(0).max(1).default(1),
    /** The critic's own loss (loss/value.ts): its weight, and how far an update moves a value, in units of reward. */
    value: z
      .strictObject({
        coefficient: z.number().min(0).max(100).default(0.5),
        clip: z.number().positive().max(1_000_000).default(0.2),
      })
      .prefault({}),
    ...varianceFloor,
  }),
  /** A user's own (user-algorithm.ts). */
  z.strictObject({
    type: z.literal("custom"),
    compute: z.custom<AdvantageFunction>((value) => typeof value === "function", "wanted a function"),
  }),
]);
export type AdvantageConfig = z.infer<typeof advantageSchema>;
/** An advantage whose baseline is a learned critic: the engine then needs a value head. */
export type CriticConfig = Extract<AdvantageConfig, { readonly type: "gae" }>;

export function needsCritic(config: AdvantageConfig | undefined): config is CriticConfig {
  return config?.type === "gae";
}

/** Below this spread (standard deviation, in units of reward) rewards are equal but for float noise. */
export const MIN_SPREAD = 1e-3;

/** Below this a user's own advantage is 0 but for float noise. */
const MIN_ADVANTAGE = 1e-6;

export interface GroupAdvantage {
  /** [R][T]; as the credits came. */
  readonly advantages_RT: readonly Float64Array[];
  readonly mean: number;
  /** Sample standard deviation of the rollouts' mean credits; 0 for a group of one. */
  readonly spread: number;
  /**
   * Nothing can be learned from the group, its advantages are all 0: the spread is below {@link MIN_SPREAD}, and
   * nothing outside the group gives its rollouts a baseline.
   */
  readonly flat: boolean;
}

/**
 * Advantages of the rollouts of one task.
 * @param credits_RT credits of each rollout's transitions; a rollout without transitions is not allowed
 */
export function groupAdvantage(credits_RT: readonly Float64Array[], config: AdvantageConfig): GroupAdvantage {
  const { mean, means_R, spread } = groupStatistics(credits_RT);
  if (credits_RT.length > 0 && isBatchNormalised(config)) {
    const advantages_RT = config.type === "group-mean-batch-std" ? groupMean(credits_RT, mean) : credits_RT;
    return { advantages_RT, mean, spread, flat: false };
  }
  // Its credit stays as it is until the batch is gathered.
  if (credits_RT.length === 1 && "alone" in config && config.alone !== undefined) {
    return { advantages_RT: credits_RT, mean, spread, flat: false };
  }
  if (config.type === "custom" && credits_RT.length > 0) {
    const advantages_RT = customAdvantage(credits_RT, config.compute);
    // Its baseline may be anything: only what pulls on no token teaches nothing.
    const flat = advantages_RT.every((each) => each.every((advantage) => Math.abs(advantage) < MIN_ADVANTAGE));
    return { advantages_RT, mean, spread, flat };
  }
  const flat = spread < MIN_SPREAD;
  if (flat) return { advantages_RT: credits_RT.map((each) => new Float64Array(each.length)), mean, spread, flat };
  if (config.type === "group-mean-std") {
    return { advantages_RT: groupMeanStd(credits_RT, { mean, spread, epsilon: config.epsilon }), mean, spread, flat };
  }
  const advantages_RT =
    config.type === "leave-one-out" ? leaveOneOut(credits_RT, { mean, means_R }) : groupMean(credits_RT, mean);
  return { advantages_RT, mean, spread, flat };
}

/**
 * Final advantages of a batch's tokens.
 * @param rows of the whole batch, with the advantages of their groups or their critic, and the KL penalty if it is in
 * the reward
 * @returns advantages_T of each row; those that came where the method is done with its groups
 */
export function normaliseBatch(rows: readonly WhitenRow[], config: AdvantageConfig): Float64Array[] {
  return isBatchNormalised(config) ? whiten(rows, config) : rows.map((row) => row.advantages);
}

function isBatchNormalised(
  config: AdvantageConfig,
): config is Extract<AdvantageConfig, { readonly type: "batch-mean-std" | "group-mean-batch-std" | "gae" }> {
  return config.type === "batch-mean-std" || config.type === "group-mean-batch-std" || config.type === "gae";
}

function groupStatistics(credits_RT: readonly Float64Array[]): { mean: number; means_R: number[]; spread: number } {
  const means_R = credits_RT.map((credits_T) => average(credits_T));
  const mean = average(means_R);
  const squares = means_R.reduce((sum, each) => sum + (each - mean) ** 2, 0);
  return { mean, means_R, spread: means_R.length < 2 ? 0 : Math.sqrt(squares / (means_R.length - 1)) };
}

function average(values: ArrayLike<number>): number {
  let sum = 0;
  for (let at = 0; at < values.length; at += 1) sum += values[at] ?? 0;
  return values.length === 0 ? 0 : sum / values.length;
}
