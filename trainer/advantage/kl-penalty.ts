import { klTerm, type KlEstimator } from "../loss/kl.ts";

/** One row, [T] each. */
export interface KlRow {
  readonly lossMask: Uint8Array;
  /** Under the weights at the batch's first update: the penalty is a reward, and a constant of every update. */
  readonly policyLogprobs: ArrayLike<number>;
  readonly referenceLogprobs: ArrayLike<number>;
}

export interface PenaltyRow extends KlRow {
  readonly advantages: Float64Array;
  readonly sequenceOfToken: ArrayLike<number>;
}

export interface KlPenaltyOptions {
  /** β, in units of reward per nat. */
  readonly coefficient: number;
  readonly estimator: KlEstimator;
}

/**
 * What each token pays for itself alone: β·KL(t).
 * @returns penalties_T, 0 where the mask is 0
 */
export function klPenalties(
  { lossMask, policyLogprobs, referenceLogprobs }: KlRow,
  { coefficient, estimator }: KlPenaltyOptions,
): Float64Array {
  return Float64Array.from(lossMask, (bit, t) =>
    bit === 1 ? coefficient * klTerm(estimator, policyLogprobs[t] ?? 0, referenceLogprobs[t] ?? 0).kl : 0,
  );
}

/**
 * The KL divergence to the reference as a penalty in the reward: every token pays for itself and for those that follow
 * it in its sequence, A_t − β·Σ_{u≥t} KL(u). An LLM answer is an episode of its own, so that the sum ends with it,
 * however calls were joined into rows.
 * @returns advantages_T
 * @see Hu et al. 2025, arXiv:2501.03262: A_t = r − β·Σ_{i≥t} KL(i) with k1
 */
export function penaliseKl(row: PenaltyRow, options: KlPenaltyOptions): Float64Array {
  const { lossMask, advantages, sequenceOfToken } = row;
  const penalties_T = klPenalties(row, options);
  const penalised_T = Float64Array.from(advantages);
  const following = new Map<number, number>();
  for (let t = lossMask.length - 1; t >= 0; t -= 1) {
    if (lossMask[t] !== 1) continue;
    const sequence = sequenceOfToken[t] ?? 0;
    const sum = (following.get(sequence) ?? 0) + (penalties_T[t] ?? 0);
    following.set(sequence, sum);
    penalised_T[t] = (advantages[t] ?? 0) - sum;
  }
  return penalised_T;
}
