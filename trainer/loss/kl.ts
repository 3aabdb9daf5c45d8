/**
 * The k3 estimate of KL(π‖π_reference) from one token drawn from π: exp(d) − d − 1 with d = log π_reference − log π.
 * Never negative, unbiased, and 0 exactly where the two agree.
 * @returns the estimate in nats and its derivative with respect to log π
 * @see Schulman 2020, Approximating KL divergence
 */
export function k3(policyLogprob: number, referenceLogprob: number): { kl: number; dLogprob: number } {
  const difference = referenceLogprob - policyLogprob;
  // exp(d) − 1 loses all digits where the policies nearly agree, which is where they are at the start.
  const excess = Math.expm1(difference);
  return { kl: excess - difference, dLogprob: -excess };
}
