import type { LossRow } from "./loss-row.ts";

export const AGGREGATIONS = ["token-mean", "rollout-mean"] as const;
/**
 * `token-mean`: every action token of the batch counts the same, so long rollouts count more.
 * `rollout-mean`: every rollout counts the same, its tokens sharing its weight, whatever the number of its rows.
 */
export type Aggregation = (typeof AGGREGATIONS)[number];

/**
 * The weight of each row's tokens in the batch's loss; weights of all action tokens add up to 1.
 * @returns one weight per row: all tokens of a row weigh the same
 */
export function tokenWeights(rows: readonly LossRow[], aggregation: Aggregation): Float64Array {
  const tokensOfRow = rows.map((row) => row.lossMask.reduce((sum, bit) => sum + bit, 0));
  if (aggregation === "token-mean") {
    const total = tokensOfRow.reduce((sum, tokens) => sum + tokens, 0);
    return new Float64Array(rows.length).fill(total === 0 ? 0 : 1 / total);
  }
  const tokensOfRollout = new Map<number, number>();
  rows.forEach((row, at) => {
    tokensOfRollout.set(row.rollout, (tokensOfRollout.get(row.rollout) ?? 0) + (tokensOfRow[at] ?? 0));
  });
  const rollouts = [...tokensOfRollout.values()].filter((tokens) => tokens > 0).length;
  return Float64Array.from(rows, (row) => {
    const tokens = tokensOfRollout.get(row.rollout) ?? 0;
    return tokens === 0 ? 0 : 1 / (rollouts * tokens);
  });
}
