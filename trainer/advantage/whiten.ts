/** A row's advantages [T], and which of them count. */
export interface WhitenRow {
  readonly lossMask: Uint8Array;
  readonly advantages: Float64Array;
}

/**
 * Shifts and scales advantages to mean 0 and standard deviation 1 over all action tokens of the batch:
 * A = (A − mean) / √(var + ε). Tasks keep their relative scale, where a spread taken per group would inflate that of
 * tasks that are nearly always right or wrong.
 * @param epsilon in units of advantage squared
 * @returns advantages_T of each row, 0 where the mask is 0; all 0 where nothing varies
 * @see Hu et al. 2025, arXiv:2501.03262; the variance is the sample's (n − 1), as verl and OpenRLHF compute it
 */
export function whiten(rows: readonly WhitenRow[], { epsilon }: { readonly epsilon: number }): Float64Array[] {
  let tokens = 0;
  let sum = 0;
  forActionTokens(rows, (advantage) => {
    tokens += 1;
    sum += advantage;
  });
  const mean = tokens === 0 ? 0 : sum / tokens;
  let squares = 0;
  forActionTokens(rows, (advantage) => {
    squares += (advantage - mean) ** 2;
  });
  const variance = tokens < 2 ? 0 : squares / (tokens - 1);
  // Equal advantages differ by float noise, which dividing by their spread would make live.
  const scale = variance < 1e-12 ? 0 : 1 / Math.sqrt(variance + epsilon);
  return rows.map(({ lossMask, advantages }) =>
    advantages.map((advantage, t) => (lossMask[t] === 1 ? (advantage - mean) * scale : 0)),
  );
}

function forActionTokens(rows: readonly WhitenRow[], visit: (advantage: number) => void): void {
  for (const { lossMask, advantages } of rows) {
    for (let t = 0; t < lossMask.length; t += 1) if (lossMask[t] === 1) visit(advantages[t] ?? 0);
  }
}
