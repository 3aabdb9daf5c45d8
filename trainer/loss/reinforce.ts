import { importanceWeight, type ImportanceConfig } from "./importance.ts";
import type { SurrogateTerm, SurrogateToken } from "./surrogate.ts";

/**
 * The score-function surrogate of one token: −w·A·log π, with the importance weight w = min(cap, π/β) held constant.
 * While the weight is below its cap the derivative is that of −(π/β)·A.
 * @see Williams 1992, Simple statistical gradient-following algorithms
 */
export function reinforceTerm(
  { policyLogprob, behaviourLogprob, advantage }: Omit<SurrogateToken, "proximalLogprob">,
  { importance }: { readonly importance: ImportanceConfig },
): SurrogateTerm {
  const weight = importanceWeight(policyLogprob, behaviourLogprob, importance);
  return { loss: -weight * advantage * policyLogprob, dLogprob: -weight * advantage };
}
