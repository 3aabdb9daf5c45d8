import { importanceWeight } from "./importance.ts";
import type { PpoClipOptions } from "./ppo-clip.ts";
import type { SurrogateTerm, SurrogateToken } from "./surrogate.ts";

/**
 * The score-function surrogate with a clipped ratio as a constant weight: −w·clip(ρ, 1 − low, 1 + high)·A·log π.
 * Where PPO drops a token that is past its bound, this one keeps pulling by the bound, so that rare tokens which the
 * first updates made much likelier go on being learned.
 * @see MiniMax 2025, arXiv:2506.13585
 */
export function cispoTerm(
  { policyLogprob, proximalLogprob, behaviourLogprob, advantage }: SurrogateToken,
  { importance, clipLow, clipHigh }: PpoClipOptions,
): SurrogateTerm {
  const ratio = Math.exp(policyLogprob - proximalLogprob);
  const clippedRatio = Math.min(1 + clipHigh, Math.max(1 - clipLow, ratio));
  const weight = importanceWeight(proximalLogprob, behaviourLogprob, importance) * clippedRatio;
  return {
    loss: -weight * advantage * policyLogprob,
    dLogprob: -weight * advantage,
    ...(ratio > clippedRatio ? { clipped: "high" as const } : {}),
    ...(ratio < clippedRatio ? { clipped: "low" as const } : {}),
  };
}
