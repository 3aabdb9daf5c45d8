import { returnToGo } from "./return-to-go.ts";
import type { RolloutRewards } from "./rollout-rewards.ts";

/**
 * The rollout's reward arrives at its last transition and is discounted backwards: G_t = γ^(T−1−t)·R.
 * @returns credits_T
 */
export function discountedCredit(
  { total, intermediate_T }: Pick<RolloutRewards, "total" | "intermediate_T">,
  { gamma }: { readonly gamma: number },
): Float64Array {
  const rewards_T = intermediate_T.map((_, t) => (t === intermediate_T.length - 1 ? total : 0));
  return returnToGo(rewards_T, gamma);
}
