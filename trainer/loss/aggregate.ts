import type { LossRow } from "./loss-row.ts";
import { countSequences, sequenceLengths } from "./sequences.ts";

export const AGGREGATIONS = ["token-mean", "batch-mean", "sequence-mean", "sequence-sum", "rollout-mean"] as const;
/**
 * `token-mean`: every action token of the update counts the same, so long rollouts count more.
 * `batch-mean`: as `token-mean`, over the whole batch: where its updates have unequal numbers of tokens, a token still
 * counts the same in each of them.
 * `sequence-mean`: every sequence (one LLM answer) counts the same, its tokens sharing its weight.
 * `sequence-sum`: every token weighs one constant, 1 / (sequences · `responseTokens`), whatever its sequence's length.
 * `rollout-mean`: every rollout counts the same, its tokens sharing its weight, whatever the number of its rows.
 */
export type Aggregation = (typeof AGGREGATIONS)[number];

export interface AggregateOptions {
  readonly aggregation: Aggregation;
  /** Of `sequence-sum`. */
  readonly responseTokens?: number;
  /** Of `batch-mean`: action tokens of the batch / its updates; absent means that the update is the batch. */
  readonly tokensPerUpdate?: number | undefined;
}

/**
 * The weight of each action token in the update's loss. They are taken over all rows at once, so that it makes no
 * difference how an engine cuts them into micro-batches. All means add up to 1 (`batch-mean` over the batch).
 * @returns weights_T of each row, equal over a sequence's tokens; what they are where the mask is 0 has no meaning
 */
export function tokenWeights(
  rows: readonly LossRow[],
  { aggregation, responseTokens = 1, tokensPerUpdate }: AggregateOptions,
): Float64Array[] {
  const tokensOfRow = rows.map((row) => row.lossMask.reduce((sum, bit) => sum + bit, 0));
  const same = (weight: number): Float64Array[] =>
    rows.map((row) => new Float64Array(row.lossMask.length).fill(weight));
  if (aggregation === "token-mean" || aggregation === "batch-mean") {
    const total = tokensOfRow.reduce((sum, tokens) => sum + tokens, 0);
    const over = aggregation === "batch-mean" ? (tokensPerUpdate ?? total) : total;
    return same(total === 0 ? 0 : 1 / over);
  }
  if (aggregation === "sequence-mean" || aggregation === "sequence-sum") {
    const sequences = rows.reduce((sum, row) => sum + countSequences(row), 0);
    if (sequences === 0) return same(0);
    if (aggregation === "sequence-sum") return same(1 / (sequences * responseTokens));
    return rows.map((row) => sequenceLengths(row).map((tokens) => (tokens === 0 ? 0 : 1 / (sequences * tokens))));
  }
  const tokensOfRollout = new Map<number, number>();
  rows.forEach((row, at) => {
    tokensOfRollout.set(row.rollout, (tokensOfRollout.get(row.rollout) ?? 0) + (tokensOfRow[at] ?? 0));
  });
  const rollouts = [...tokensOfRollout.values()].filter((tokens) => tokens > 0).length;
  return rows.map((row) => {
    const tokens = tokensOfRollout.get(row.rollout) ?? 0;
    return new Float64Array(row.lossMask.length).fill(tokens === 0 ? 0 : 1 / (rollouts * tokens));
  });
}
