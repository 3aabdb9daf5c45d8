/**
 * Credit minus the mean of the group's other rollouts: A_i = r_i − Σ_{j≠i} r_j / (n − 1). A rollout is no part of its
 * own baseline, so that the gradient is unbiased at any group size; group-mean is this times (n − 1)/n.
 * @param mean of the group's rollouts, each counting once
 * @param means_R each rollout's mean credit; at least two
 * @returns advantages_RT
 * @see Kool et al. 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free!; Ahmadian et al. 2024, arXiv:2402.14740
 */
export function leaveOneOut(
  credits_RT: readonly Float64Array[],
  { mean, means_R }: { readonly mean: number; readonly means_R: readonly number[] },
): Float64Array[] {
  const n = means_R.length;
  return credits_RT.map((credits_T, at) => {
    const others = (n * mean - (means_R[at] ?? 0)) / (n - 1);
    return credits_T.map((credit) => credit - others);
  });
}
