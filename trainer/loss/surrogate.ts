/** One action token as a surrogate sees it. */
export interface SurrogateToken {
  readonly policyLogprob: number;
  readonly proximalLogprob: number;
  readonly behaviourLogprob: number;
  readonly advantage: number;
}

/** A token's term of the loss to be minimised, and its derivative. */
export interface SurrogateTerm {
  readonly loss: number;
  /** ∂loss/∂policyLogprob. */
  readonly dLogprob: number;
  readonly clipped?: "low" | "high";
}
