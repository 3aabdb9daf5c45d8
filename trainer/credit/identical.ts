import type { RolloutRewards } from "./rollout-rewards.ts";

/**
 * Every transition is credited with the whole reward of its rollout: R_t = R.
 * @returns credits_T
 * @see Luo et al. 2025, arXiv:2508.03680: the default credit assignment of LightningRL
 */
export function identicalCredit({
  total,
  intermediate_T,
}: Pick<RolloutRewards, "total" | "intermediate_T">): Float64Array {
  return new Float64Array(intermediate_T.length).fill(total);
}
