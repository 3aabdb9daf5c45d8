/**
 * What a request changes about the model's distribution before a token is drawn: penalties on what the answer has
 * already, a bias on single tokens, and which tokens are possible at all. Pure arithmetic over one row.
 */

/** What a request asks for; OpenAI's semantics, in logits. */
export interface LogitAdjustments {
  /** Subtracted for each time a token was drawn. */
  readonly frequencyPenalty: number;
  /** Subtracted once a token was drawn. */
  readonly presencePenalty: number;
  /** Added to a token's logit. */
  readonly bias: readonly (readonly [token: number, bias: number])[];
}

/** Changes nothing. */
export const NO_ADJUSTMENTS: LogitAdjustments = { frequencyPenalty: 0, presencePenalty: 0, bias: [] };

/**
 * Stands for the logarithm of a probability that float32 rounds to zero, about e^−103.3: a strong bias can still lift
 * such a token.
 */
const LOWEST_LOGPROB = -104;

/** The adjustments of one answer as it grows. */
export class LogitRules {
  readonly #adjustments: LogitAdjustments;
  readonly #temperature: number;
  /** Times that a token was drawn. */
  readonly #counts = new Map<number, number>();

  /** @param temperature what the logits are divided by; 0 leaves them as they are, for greedy answers */
  constructor(adjustments: LogitAdjustments, temperature: number) {
    this.#adjustments = adjustments;
    this.#temperature = temperature === 0 ? 1 : temperature;
  }

  /** Takes note of a token of the answer. */
  accept(token: number): void {
    this.#counts.set(token, (this.#counts.get(token) ?? 0) + 1);
  }

  /**
   * softmax((logits + bias − penalties) / temperature) over the tokens that are allowed.
   * @param probabilities_V softmax of the plain logits, at temperature 1: a difference of logits is one of logarithms
   * @param allowed tokens that may be drawn; null for all
   * @returns probabilities_V of the distribution to draw from, a new array
   */
  apply(probabilities_V: Float32Array, allowed: readonly number[] | null): Float32Array {
    const logprob = (p: number): number => (p > 0 ? Math.log(p) : LOWEST_LOGPROB);
    const scores_V =
      allowed === null ? Float64Array.from(probabilities_V, logprob) : onlyAt(probabilities_V, allowed, logprob);
    const { frequencyPenalty, presencePenalty, bias } = this.#adjustments;
    const add = (token: number, change: number): void => {
      const score = scores_V[token];
      if (score !== undefined) scores_V[token] = score + change;
    };
    for (const [token, count] of this.#counts) add(token, -frequencyPenalty * count - presencePenalty);
    for (const [token, change] of bias) add(token, change);
    let most = -Infinity;
    for (const score of scores_V) most = Math.max(most, score);
    let total = 0;
    for (let v = 0; v < scores_V.length; v++) {
      const weight = Math.exp(((scores_V[v] ?? 0) - most) / this.#temperature);
      scores_V[v] = weight;
      total += weight;
    }
    return Float32Array.from(scores_V, (weight) => weight / total);
  }
}

function onlyAt(values: Float32Array, places: readonly number[], change: (value: number) => number): Float64Array {
  const scores = new Float64Array(values.length).fill(-Infinity);
  for (const place of places) if (place < values.length) scores[place] = change(values[place] ?? 0);
  return scores;
}
