import { FulgurError } from "#shared/errors.ts";

export interface GaeOptions {
  /** Discount γ of what comes one action later, in [0, 1]. */
  readonly gamma: number;
  /** In [0, 1]: 0 is the one-step error, which trusts the critic; 1 the whole return less the value, which does not. */
  readonly lambda: number;
}

/**
 * Generalised advantage estimation over one trajectory: A_t = Σ_k (γλ)^k·δ_{t+k} with δ_t = r_t + γ·V(s_{t+1}) − V(s_t).
 * A_t + V(s_t) is the λ-return, which the critic is trained towards.
 * @param rewards_T reward after action t
 * @param values_T1 V(s_0…s_T); the last bootstraps, 0 if terminal
 * @returns advantages_T, not normalised
 * @throws FulgurError ERR_SHAPE when lengths are not T and T+1
 * @see Schulman et al. 2016, arXiv:1506.02438, eq. 11–16
 */
export function gae(
  rewards_T: ArrayLike<number>,
  values_T1: ArrayLike<number>,
  { gamma, lambda }: GaeOptions,
): Float64Array {
  const steps = rewards_T.length;
  if (values_T1.length !== steps + 1) {
    throw new FulgurError(
      "ERR_SHAPE",
      `${steps} rewards want ${steps + 1} values, the last of them of the state after the last action; ${values_T1.length} came`,
    );
  }
  const advantages_T = new Float64Array(steps);
  let following = 0;
  for (let t = steps - 1; t >= 0; t -= 1) {
    const surprise = (rewards_T[t] ?? 0) + gamma * (values_T1[t + 1] ?? 0) - (values_T1[t] ?? 0);
    following = surprise + gamma * lambda * following;
    advantages_T[t] = following;
  }
  return advantages_T;
}
