import { z } from "zod";
import { airCredit } from "./air.ts";
import { discountedCredit } from "./discounted.ts";
import { identicalCredit } from "./identical.ts";
import type { RolloutRewards } from "./rollout-rewards.ts";

/**
 * Credit: from the rewards of one rollout to one return per transition. A method is a file here, a member of the
 * schema and a line at the end; it sees one rollout and never its group.
 */

export const creditSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("identical") }),
  z.strictObject({
    type: z.literal("discounted"),
    /** Discount γ for each transition between an action and the end. */
    gamma: z.number().min(0).max(1).default(0.99),
  }),
  z.strictObject({
    type: z.literal("air"),
    gamma: z.number().min(0).max(1).default(1),
    /** Weight of the terminal reward beside the intermediate ones, whose weights are the tools' own. */
    terminalWeight: z.number().min(0).max(100).default(1),
  }),
]);
export type CreditConfig = z.infer<typeof creditSchema>;

/**
 * The return credited to each transition of a rollout.
 * @returns credits_T, as many as there are intermediate rewards
 */
export function assignCredit(rewards: RolloutRewards, config: CreditConfig): Float64Array {
  if (config.type === "identical") return identicalCredit(rewards);
  if (config.type === "discounted") return discountedCredit(rewards, config);
  return airCredit(rewards, config);
}
