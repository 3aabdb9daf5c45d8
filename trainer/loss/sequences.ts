import type { LossRow } from "./loss-row.ts";

/** A sequence is what was sampled in one go, an LLM's answer; a row may hold several, with prompts in between. */
type Sequences = Pick<LossRow, "lossMask" | "sequenceOfToken">;

/**
 * The mean of a quantity over the action tokens of each token's sequence.
 * @param value of the token at t
 * @returns means_T; 0 where the loss mask is 0
 */
export function sequenceMeans(row: Sequences, value: (t: number) => number): Float64Array {
  const sums = new Map<number, { sum: number; tokens: number }>();
  forActionTokens(row, (t, sequence) => {
    const { sum, tokens } = sums.get(sequence) ?? { sum: 0, tokens: 0 };
    sums.set(sequence, { sum: sum + value(t), tokens: tokens + 1 });
  });
  const means_T = new Float64Array(row.lossMask.length);
  forActionTokens(row, (t, sequence) => {
    const { sum, tokens } = sums.get(sequence) ?? { sum: 0, tokens: 1 };
    means_T[t] = sum / tokens;
  });
  return means_T;
}

/** The action tokens of each token's sequence, [T]; 0 where the loss mask is 0. */
export function sequenceLengths(row: Sequences): Float64Array {
  const lengths = new Map<number, number>();
  forActionTokens(row, (_, sequence) => lengths.set(sequence, (lengths.get(sequence) ?? 0) + 1));
  const lengths_T = new Float64Array(row.lossMask.length);
  forActionTokens(row, (t, sequence) => {
    lengths_T[t] = lengths.get(sequence) ?? 0;
  });
  return lengths_T;
}

/** How many sequences of the row have an action token. */
export function countSequences(row: Sequences): number {
  const seen = new Set<number>();
  forActionTokens(row, (_, sequence) => seen.add(sequence));
  return seen.size;
}

function forActionTokens({ lossMask, sequenceOfToken }: Sequences, visit: (t: number, sequence: number) => void): void {
  for (let t = 0; t < lossMask.length; t += 1) if (lossMask[t] === 1) visit(t, sequenceOfToken?.[t] ?? 0);
}
