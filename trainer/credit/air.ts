import { returnToGo } from "./return-to-go.ts";
import type { RolloutRewards } from "./rollout-rewards.ts";

/**
 * Return-to-go over dense rewards: what a transition's tool calls earned counts for it and for those before it, not
 * for those after it; the terminal reward arrives at the last transition.
 * @returns credits_T
 * @see Luo et al. 2025, arXiv:2508.03680, for automatic intermediate rewards; the return-to-go over them is ours
 */
export function airCredit(
  { terminal, intermediate_T }: Pick<RolloutRewards, "terminal" | "intermediate_T">,
  { gamma, terminalWeight }: { readonly gamma: number; readonly terminalWeight: number },
): Float64Array {
  const last = intermediate_T.length - 1;
  return returnToGo(
    intermediate_T.map((reward, t) => reward + (t === last ? terminalWeight * terminal : 0)),
    gamma,
  );
}
