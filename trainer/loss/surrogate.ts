/** One action token as a surrogate sees it. */
export interface SurrogateToken {
  readonly policyLogprob: number;
  /** Of the policy that ratios are taken to. */
  readonly proximalLogprob: number;
  readonly behaviourLogprob: number;
  readonly advantage: number;
}

/** What a surrogate of whole sequences sees besides: means over the token's sequence. */
export interface SequenceToken extends SurrogateToken {
  /** Of log π − log π_proximal. */
  readonly meanLogRatio: number;
  /** Of log π_proximal − log β. */
  readonly meanLogWeight: number;
}

/** A token's term of the loss to be minimised, and its derivative. */
export interface SurrogateTerm {
  readonly loss: number;
  /** ∂loss/∂policyLogprob. */
  readonly dLogprob: number;
  readonly clipped?: "low" | "high";
}
