/**
 * Credit minus the group's mean, unscaled: A = r − mean.
 * @param mean of the group's rollouts, each counting once
 * @returns advantages_RT
 * @see Liu et al. 2025, arXiv:2503.20783: dividing by the spread overweights tasks that are nearly always right or wrong
 */
export function groupMean(credits_RT: readonly Float64Array[], mean: number): Float64Array[] {
  return credits_RT.map((credits_T) => credits_T.map((credit) => credit - mean));
}
