/** What a loss sees of one training row; all arrays are [T] and count only where the mask is 1. */
export interface LossRow {
  /** Index of the rollout that the row belongs to; a rollout may have several rows. */
  readonly rollout: number;
  /** Index of the group that the rollout belongs to; absent means that all rows are of one. */
  readonly group?: number;
  /** Names the response that a token belongs to: one LLM answer is one sequence. Absent means that the row is one. */
  readonly sequenceOfToken?: ArrayLike<number>;
  readonly lossMask: Uint8Array;
  readonly advantages: ArrayLike<number>;
  /** Recorded while sampling. */
  readonly behaviourLogprobs: ArrayLike<number>;
  /** Under the weights that are being trained now. */
  readonly policyLogprobs: ArrayLike<number>;
  /** Under the weights at the batch's first update; absent means that this is the first (they are the policy's). */
  readonly proximalLogprobs?: ArrayLike<number>;
  /** Under the frozen weights that training began with. */
  readonly referenceLogprobs?: ArrayLike<number>;
  /** In nats, of the distributions that the tokens were drawn from, under the weights being trained. */
  readonly entropy?: ArrayLike<number>;
}
