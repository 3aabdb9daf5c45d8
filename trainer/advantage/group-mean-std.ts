/**
 * Credit minus the group's mean, in units of the group's spread: A = (r − mean) / (std + ε).
 * @param mean of the group's rollouts, each counting once
 * @param spread sample standard deviation (n − 1), as the usual implementations compute it
 * @returns advantages_RT
 * @see Shao et al. 2024, arXiv:2402.03300
 */
export function groupMeanStd(
  credits_RT: readonly Float64Array[],
  { mean, spread, epsilon }: { readonly mean: number; readonly spread: number; readonly epsilon: number },
): Float64Array[] {
  return credits_RT.map((credits_T) => credits_T.map((credit) => (credit - mean) / (spread + epsilon)));
}
