import { klTerm, type KlEstimator } from "../loss/kl.ts";

/** One row, [T] each. */
export interface PenaltyRow {
  readonly lossMask: Uint8Array;
  readonly advantages: Float64Array;
  readonly sequenceOfToken: ArrayLike<number>;
  /** Under the weights at the batch's first update: the penalty is a reward, and a constant of every update. */
  readonly policyLogprobs: ArrayLike<number>;
  readonly referenceLogprobs: ArrayLike<number>;
}

/**
 * The KL divergence to the reference as a penalty in the reward: every token pays for itself and for those that follow
 * it in its sequence, A_t − β·Σ_{u≥t} KL(u). An LLM answer is an episode of its own, so that the sum ends with it,
 * however calls were joined into rows.
 * @returns advantages_T
 * @see Hu et al. 2025, arXiv:2501.03262: A_t = r − β·Σ_{i≥t} KL(i) with k1
 */
export function penaliseKl(
  { lossMask, advantages, sequenceOfToken, policyLogprobs, referenceLogprobs }: PenaltyRow,
  { coefficient, estimator }: { readonly coefficient: number; readonly estimator: KlEstimator },
): Float64Array {
  const penalised_T = Float64Array.from(advantages);
  const following = new Map<number, number>();
  for (let t = lossMask.length - 1; t >= 0; t -= 1) {
    if (lossMask[t] !== 1) continue;
    const sequence = sequenceOfToken[t] ?? 0;
    const { kl } = klTerm(estimator, policyLogprobs[t] ?? 0, referenceLogprobs[t] ?? 0);
    const sum = (following.get(sequence) ?? 0) + kl;
    following.set(sequence, sum);
    penalised_T[t] = (advantages[t] ?? 0) - coefficient * sum;
  }
  return penalised_T;
}
