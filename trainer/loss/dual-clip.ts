import { ppoClipTerm, type PpoClipOptions } from "./ppo-clip.ts";
import { importanceWeight } from "./importance.ts";
import type { SurrogateTerm, SurrogateToken } from "./surrogate.ts";

export interface DualClipOptions extends PpoClipOptions {
  /** Where the advantage is negative, the ratio counts no more than this; over 1. */
  readonly bound: number;
}

/**
 * PPO's clip with a floor under what a bad action may cost: for A < 0, −w·max(min(ρ·A, clip(ρ)·A), c·A).
 * PPO's own clip leaves ρ·A without bound there, and a token that has become likely since it was sampled dominates.
 * @see Ye et al. 2020, arXiv:1912.09729
 */
export function dualClipTerm(token: SurrogateToken, options: DualClipOptions): SurrogateTerm {
  const { policyLogprob, proximalLogprob, behaviourLogprob, advantage } = token;
  if (advantage < 0 && Math.exp(policyLogprob - proximalLogprob) > options.bound) {
    const weight = importanceWeight(proximalLogprob, behaviourLogprob, options.importance);
    return { loss: -weight * options.bound * advantage, dLogprob: 0, clipped: "high" };
  }
  return ppoClipTerm(token, options);
}
