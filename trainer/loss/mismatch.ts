import { k3 } from "./kl.ts";

/** Per-row arrays [T] of what is compared; they count only where the mask is 1. */
export interface MismatchRow {
  readonly lossMask: Uint8Array;
  readonly behaviourLogprobs: ArrayLike<number>;
  readonly policyLogprobs: ArrayLike<number>;
}

/** How far the policy being trained is from the one that sampled; explained in docs/METRICS.md. */
export interface Mismatch {
  readonly kl_behaviour: number;
  readonly importance_weight_mean: number;
  readonly importance_weight_max: number;
  readonly ess: number;
}

/**
 * Compares the training policy π with the behaviour policy β on the tokens that β drew.
 * @returns kl_behaviour: k3 estimate of KL(β‖π) in nats a token; importance_weight_mean and _max: of w = π/β, whose
 * expectation is 1; ess: effective sample size (Σw)² / (n·Σw²), in (0, 1]
 */
export function measureMismatch(rows: readonly MismatchRow[]): Mismatch {
  let tokens = 0;
  let divergence = 0;
  let sum = 0;
  let squares = 0;
  let largest = 0;
  for (const { lossMask, behaviourLogprobs, policyLogprobs } of rows) {
    for (let t = 0; t < lossMask.length; t += 1) {
      if (lossMask[t] !== 1) continue;
      const policy = policyLogprobs[t] ?? 0;
      const behaviour = behaviourLogprobs[t] ?? 0;
      const weight = Math.exp(policy - behaviour);
      tokens += 1;
      // Drawn from β, so β takes the place of the policy in k3.
      divergence += k3(behaviour, policy).kl;
      sum += weight;
      squares += weight * weight;
      largest = Math.max(largest, weight);
    }
  }
  if (tokens === 0) return { kl_behaviour: 0, importance_weight_mean: 1, importance_weight_max: 1, ess: 1 };
  return {
    kl_behaviour: divergence / tokens,
    importance_weight_mean: sum / tokens,
    importance_weight_max: largest,
    ess: (sum * sum) / (tokens * squares),
  };
}
