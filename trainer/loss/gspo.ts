import { importanceWeight } from "./importance.ts";
import type { PpoClipOptions } from "./ppo-clip.ts";
import type { SequenceToken, SurrogateTerm } from "./surrogate.ts";

/**
 * PPO's clip with the ratio of the whole sequence, s = exp(mean over its tokens of log π − log π_proximal): a sequence
 * is kept or clipped as one. A token's term stands for its share of the sequence's; its pull is −w·s·A.
 *
 * This is the paper's token form, which has the value and the gradient of the sequence form
 * where advantages and weights are the same over a sequence, and a meaning where they are not.
 * The importance weight w is the sequence's too: min(cap, exp(mean of log π_proximal − log β)).
 * @see Zheng et al. 2025, arXiv:2507.18071
 */
export function gspoTerm(
  { advantage, meanLogRatio, meanLogWeight }: Pick<SequenceToken, "advantage" | "meanLogRatio" | "meanLogWeight">,
  { importance, clipLow, clipHigh }: PpoClipOptions,
): SurrogateTerm {
  const weight = importanceWeight(meanLogWeight, 0, importance);
  const ratio = Math.exp(meanLogRatio);
  if (advantage > 0 && ratio > 1 + clipHigh) {
    return { loss: -weight * (1 + clipHigh) * advantage, dLogprob: 0, clipped: "high" };
  }
  if (advantage < 0 && ratio < 1 - clipLow) {
    return { loss: -weight * (1 - clipLow) * advantage, dLogprob: 0, clipped: "low" };
  }
  return { loss: -weight * ratio * advantage, dLogprob: -weight * ratio * advantage };
}
