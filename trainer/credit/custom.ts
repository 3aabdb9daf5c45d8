import { FulgurError } from "#shared/errors.ts";
import type { RolloutRewards } from "./rollout-rewards.ts";

/** A user's own credit: from one rollout's rewards to a return for each of its transitions, [T]. */
export type CreditFunction = (rewards: RolloutRewards) => ArrayLike<number>;

/** @throws FulgurError ERR_SHAPE when what comes is not one finite number for each transition */
export function customCredit(rewards: RolloutRewards, compute: CreditFunction): Float64Array {
  const credits_T = Float64Array.from(compute(rewards));
  const wanted = rewards.intermediate_T.length;
  if (credits_T.length !== wanted || !credits_T.every(Number.isFinite)) {
    throw new FulgurError(
      "ERR_SHAPE",
      `the algorithm's own credit is to give ${wanted} finite numbers for a rollout of ${wanted} transitions, and gave [${credits_T.join(", ")}]`,
    );
  }
  return credits_T;
}
