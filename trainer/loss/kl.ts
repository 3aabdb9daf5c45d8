export const KL_ESTIMATORS = ["k1", "k2", "k3"] as const;
/** An estimate of KL(π‖π_reference) from one token drawn from π, with d = log π_reference − log π. */
export type KlEstimator = (typeof KL_ESTIMATORS)[number];

/** In nats, with the derivative with respect to log π. */
export interface KlTerm {
  readonly kl: number;
  readonly dLogprob: number;
}

/** @see Schulman 2020, Approximating KL divergence */
export function klTerm(estimator: KlEstimator, policyLogprob: number, referenceLogprob: number): KlTerm {
  if (estimator === "k1") return k1(policyLogprob, referenceLogprob);
  return estimator === "k2" ? k2(policyLogprob, referenceLogprob) : k3(policyLogprob, referenceLogprob);
}

/**
 * −d: unbiased, of either sign. As a term of the loss it does nothing but add noise: its derivative is 1, whose
 * expectation against ∇log π is 0. It belongs in the reward.
 */
export function k1(policyLogprob: number, referenceLogprob: number): KlTerm {
  return { kl: policyLogprob - referenceLogprob, dLogprob: 1 };
}

/** d²/2: never negative, biased as a number, but its gradient as a term of the loss is that of the KL divergence. */
export function k2(policyLogprob: number, referenceLogprob: number): KlTerm {
  const difference = referenceLogprob - policyLogprob;
  return { kl: (difference * difference) / 2, dLogprob: -difference };
}

/**
 * exp(d) − d − 1: never negative, unbiased, and 0 exactly where the two agree. As a term of the loss its gradient is
 * that of KL(π_reference‖π), the other direction; near the reference the two are the same.
 */
export function k3(policyLogprob: number, referenceLogprob: number): KlTerm {
  const difference = referenceLogprob - policyLogprob;
  // exp(d) − 1 loses all digits where the policies nearly agree, which is where they are at the start.
  const excess = Math.expm1(difference);
  return { kl: excess - difference, dLogprob: -excess };
}
