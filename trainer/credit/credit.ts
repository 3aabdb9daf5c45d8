import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { airCredit } from "./air.ts";
import { customCredit, type CreditFunction } from "./custom.ts";
import { discountedCredit } from "./discounted.ts";
import { identicalCredit } from "./identical.ts";
import { overlongPunishment, overlongSchema } from "./overlong.ts";
import type { RolloutRewards } from "./rollout-rewards.ts";

/**
 * Credit: from the rewards of one rollout to one return per transition. A method is a file here, a member of the
 * schema and a line at the end; it sees one rollout and never its group.
 */

/** Punishment of long answers, beside any method; absent is none. */
const shaping = { overlong: overlongSchema.optional() };

export const creditSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("identical"), ...shaping }),
  z.strictObject({
    type: z.literal("discounted"),
    /** Discount γ for each transition between an action and the end. */
    gamma: z.number().min(0).max(1).default(0.99),
    ...shaping,
  }),
  z.strictObject({
    type: z.literal("air"),
    gamma: z.number().min(0).max(1).default(1),
    /** Weight of the terminal reward beside the intermediate ones, whose weights are the tools' own. */
    terminalWeight: z.number().min(0).max(100).default(1),
    ...shaping,
  }),
  /** A user's own (user-algorithm.ts). */
  z.strictObject({
    type: z.literal("custom"),
    compute: z.custom<CreditFunction>((value) => typeof value === "function", "wanted a function"),
    ...shaping,
  }),
]);
export type CreditConfig = z.infer<typeof creditSchema>;

/**
 * The return credited to each transition of a rollout. A punishment for length is for the answer that was long alone.
 * @returns credits_T, as many as there are intermediate rewards
 * @throws FulgurError ERR_SHAPE when there is such a punishment and the lengths are not one for each transition
 */
export function assignCredit(rewards: RolloutRewards, config: CreditConfig): Float64Array {
  const credits_T = returns(rewards, config);
  const { overlong } = config;
  if (overlong === undefined) return credits_T;
  const { responseTokens_T = [] } = rewards;
  if (responseTokens_T.length !== credits_T.length) {
    throw new FulgurError(
      "ERR_SHAPE",
      `the overlong punishment wants the lengths of ${credits_T.length} answers, and ${responseTokens_T.length} came`,
    );
  }
  return credits_T.map((credit, t) => credit + overlongPunishment(responseTokens_T[t] ?? 0, overlong));
}

function returns(rewards: RolloutRewards, config: CreditConfig): Float64Array {
  if (config.type === "identical") return identicalCredit(rewards);
  if (config.type === "discounted") return discountedCredit(rewards, config);
  if (config.type === "custom") return customCredit(rewards, config.compute);
  return airCredit(rewards, config);
}
