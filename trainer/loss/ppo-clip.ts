import { importanceWeight, type ImportanceConfig } from "./importance.ts";
import type { SurrogateTerm, SurrogateToken } from "./surrogate.ts";

export interface PpoClipOptions {
  readonly importance: ImportanceConfig;
  /** The ratio may fall to 1 − clipLow … */
  readonly clipLow: number;
  /** … and rise to 1 + clipHigh before it stops paying. */
  readonly clipHigh: number;
}

/**
 * PPO's clipped surrogate of one token, −w·min(ρ·A, clip(ρ, 1 − low, 1 + high)·A) with ρ = π/π_proximal.
 *
 * Departure from the paper: the ratio is to the weights at the batch's first update, not to those that sampled.
 * What lies between these two (staleness, and any difference between inference and training numerics) is the
 * truncated importance weight w = min(cap, π_proximal/β), a constant. So an old sample is corrected, not clipped away.
 * @see Schulman et al. 2017, arXiv:1707.06347; Yu et al. 2025, arXiv:2503.14476, for the higher upper bound;
 * Hilton et al. 2022, arXiv:2110.00641, for decoupling the proximal policy from the behaviour policy
 */
export function ppoClipTerm(token: SurrogateToken, { importance, clipLow, clipHigh }: PpoClipOptions): SurrogateTerm {
  const { policyLogprob, proximalLogprob, behaviourLogprob, advantage } = token;
  const weight = importanceWeight(proximalLogprob, behaviourLogprob, importance);
  const ratio = Math.exp(policyLogprob - proximalLogprob);
  if (advantage > 0 && ratio > 1 + clipHigh) {
    return { loss: -weight * (1 + clipHigh) * advantage, dLogprob: 0, clipped: "high" };
  }
  if (advantage < 0 && ratio < 1 - clipLow) {
    return { loss: -weight * (1 - clipLow) * advantage, dLogprob: 0, clipped: "low" };
  }
  return { loss: -weight * ratio * advantage, dLogprob: -weight * ratio * advantage };
}
