/**
 * Discounted sum of the rewards from each transition to the end: G_t = Σ_k γ^k·r_{t+k}.
 * @param rewards_T reward after transition t
 * @param gamma discount in [0, 1]
 * @returns returns_T
 */
export function returnToGo(rewards_T: readonly number[], gamma: number): Float64Array {
  const returns_T = new Float64Array(rewards_T.length);
  let following = 0;
  for (let t = rewards_T.length - 1; t >= 0; t -= 1) {
    following = (rewards_T[t] ?? 0) + gamma * following;
    returns_T[t] = following;
  }
  return returns_T;
}
