/**
 * What goes into the decode graph and comes out of it. Apart from the graph, so that the threads that only run it need
 * not load what builds it.
 *
 * Shapes: B rows, S new tokens of each row, M cached positions, KV key/value heads, H head size, V vocabulary.
 */

/** Names of the graph's inputs; keys and values of layer n are `pastKey(n)` and `pastValue(n)`. */
export const INPUT = {
  /** int32 [B, S] */
  tokens: "tokens",
  /** int64 [B, S], position of each token in its sequence */
  positions: "positions",
  /** float32 [B, 1, 1, S, M + S], 0 where a new token may look and −∞ (a large negative number) where not */
  mask: "mask",
  /** int64 [2]: M and S, at which the attention weights are cut */
  split: "split",
  /** float32 [B, 1], what the logits are multiplied by before the softmax */
  inverseTemperature: "inverse_temperature",
} as const;

/** Names of the graph's outputs. */
export const OUTPUT = {
  /** float32 [B, V], of the token after the last new one */
  probabilities: "probabilities",
  /** float32 [2 · layers · B, KV, 1, S, H], k then v of each layer: [planes, B, …] */
  added: "added",
} as const;

/** float32 [B, KV, 1, M, H] */
export const pastKey = (layer: number): string => `past_key_${layer}`;
/** float32 [B, KV, 1, M, H] */
export const pastValue = (layer: number): string => `past_value_${layer}`;

/** What a position that may not be looked at gets added to its score: exp of it is exactly 0. */
export const MASKED = -1e30;
