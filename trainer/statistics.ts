import type { Estimate } from "#shared/run-events.ts";

/** 97.5th percentile of the standard normal distribution. */
const Z = 1.959963984540054;

/**
 * Mean of a sample with its 95% confidence interval by Student's t.
 * @returns the interval is the mean itself for a sample of one; all 0 for none
 */
export function meanEstimate(values: readonly number[]): Estimate {
  const n = values.length;
  if (n === 0) return { mean: 0, low: 0, high: 0 };
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  if (n === 1) return { mean, low: mean, high: mean };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  const half = studentT975(n - 1) * Math.sqrt(variance / n);
  return { mean, low: mean - half, high: mean + half };
}

/**
 * A rate with its 95% confidence interval by Wilson's score, which stays within [0, 1] and holds near its ends.
 * @see Wilson 1927, Probable inference, the law of succession, and statistical inference
 */
export function rateEstimate(successes: number, n: number): Estimate {
  if (n === 0) return { mean: 0, low: 0, high: 0 };
  const rate = successes / n;
  const middle = (rate + (Z * Z) / (2 * n)) / (1 + (Z * Z) / n);
  const half = (Z / (1 + (Z * Z) / n)) * Math.sqrt((rate * (1 - rate)) / n + (Z * Z) / (4 * n * n));
  // At 0 and n the interval's end is exact, where rounding would leave 1e-17.
  return { mean: rate, low: successes === 0 ? 0 : middle - half, high: successes === n ? 1 : middle + half };
}

/**
 * 97.5th percentile of Student's t: the Cornish–Fisher expansion about the normal, within 1e-3 from 5 degrees of freedom.
 * @see Abramowitz and Stegun 1964, 26.7.5
 */
function studentT975(freedom: number): number {
  const z3 = Z ** 3;
  const z5 = Z ** 5;
  const z7 = Z ** 7;
  return (
    Z +
    (z3 + Z) / (4 * freedom) +
    (5 * z5 + 16 * z3 + 3 * Z) / (96 * freedom ** 2) +
    (3 * z7 + 19 * z5 + 17 * z3 - 15 * Z) / (384 * freedom ** 3)
  );
}
