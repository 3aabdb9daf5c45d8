/** What the critic's loss sees of one training row; all arrays are [T] and count only where the mask is 1. */
export interface ValueRow {
  readonly lossMask: Uint8Array;
  /** V of the state before each token, under the weights that are being trained now. */
  readonly values: ArrayLike<number>;
  /** The same under the weights at the batch's first update. */
  readonly proximalValues: ArrayLike<number>;
  /** What the values should have been: λ-returns. */
  readonly returns: ArrayLike<number>;
}

export interface ValueLossOptions {
  /** Weight beside the policy's loss. */
  readonly coefficient: number;
  /** How far an update may move a value from where the batch found it, in units of reward. */
  readonly clip: number;
}

export interface ValueLossResult {
  /** Before its weight: ½·mean over action tokens. */
  readonly value_loss: number;
  /** Share of action tokens whose value is past the clip range and pulls no more. */
  readonly value_clip_fraction: number;
  /** ∂(coefficient · loss)/∂values, one per row, [T]; 0 where the mask is 0. */
  readonly dValues: readonly Float32Array[];
}

/**
 * The critic's clipped squared error: ½·mean of max((V − G)², (clip(V, V_p ± c) − G)²), V_p the values at the batch's
 * first update. The larger of the two is taken, so that a value which has moved by more than c towards its return stops
 * there, and one that has moved away is still pulled back.
 * @see the PPO2 code of OpenAI baselines; Schulman et al. 2017, arXiv:1707.06347, eq. 9 has the squared error without a
 * clip; Huang et al. 2022, The 37 implementation details of PPO, no. 9
 */
export function valueLoss(rows: readonly ValueRow[], { coefficient, clip }: ValueLossOptions): ValueLossResult {
  const tokens = rows.reduce((sum, { lossMask }) => lossMask.reduce((count, bit) => count + bit, sum), 0);
  let loss = 0;
  let clipped = 0;
  const dValues = rows.map(({ lossMask, values, proximalValues, returns }) => {
    const d_T = new Float32Array(lossMask.length);
    for (let t = 0; t < d_T.length; t += 1) {
      if (lossMask[t] !== 1) continue;
      const value = values[t] ?? 0;
      const target = returns[t] ?? 0;
      const anchor = proximalValues[t] ?? 0;
      const error = value - target;
      const boundedError = anchor + Math.min(clip, Math.max(-clip, value - anchor)) - target;
      const isClipped = boundedError ** 2 > error ** 2;
      if (isClipped) clipped += 1;
      else d_T[t] = (coefficient * error) / tokens;
      loss += Math.max(error ** 2, boundedError ** 2) / 2;
    }
    return d_T;
  });
  const mean = (sum: number): number => (tokens === 0 ? 0 : sum / tokens);
  return { value_loss: mean(loss), value_clip_fraction: mean(clipped), dValues };
}

/**
 * How much of the returns' variance the critic foretold: 1 − Var(G − V_p) / Var(G) over action tokens. 1 is all, 0 no
 * more than a constant would, below 0 less than that; 0 where the returns do not vary.
 */
export function explainedVariance(rows: readonly Omit<ValueRow, "values">[]): number {
  const returns: number[] = [];
  const errors: number[] = [];
  for (const row of rows) {
    row.lossMask.forEach((bit, t) => {
      if (bit !== 1) return;
      returns.push(row.returns[t] ?? 0);
      errors.push((row.returns[t] ?? 0) - (row.proximalValues[t] ?? 0));
    });
  }
  const total = variance(returns);
  // No tokens have a variance that is not a number.
  return total > 1e-12 ? 1 - variance(errors) / total : 0;
}

function variance(values: readonly number[]): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
}
