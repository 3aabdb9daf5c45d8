import { gae, type GaeOptions } from "./gae.ts";

/** One row as the critic sees it, [T] each; entries count only where the mask is 1. */
export interface CriticRow {
  readonly lossMask: Uint8Array;
  /** Names the transition that a token belongs to. */
  readonly sequenceOfToken: ArrayLike<number>;
  /** The return credited to each token's transition, the same for all its tokens. */
  readonly credits: ArrayLike<number>;
  /** V of the state before each token, under the weights at the batch's first update. */
  readonly values: ArrayLike<number>;
  /** What each token pays, in units of reward; absent is nothing. */
  readonly penalties?: ArrayLike<number> | undefined;
}

export interface CriticEstimate {
  /** [T]; not normalised, 0 where the mask is 0. */
  readonly advantages: Float64Array;
  /** [T]; λ-returns, the critic's targets. */
  readonly returns: Float64Array;
}

/**
 * Advantages of a row's tokens with a learned critic. Credit assignment has already given every transition its share of
 * the rollout's return; within a transition the episode is that of single-turn RLHF: a state is the text so far, an
 * action one token, the credit arrives with the last token, and the episode ends there (nothing is bootstrapped).
 * @see Luo et al. 2025, arXiv:2508.03680, section on LightningRL: credit across the calls first, then the tokens of each
 * call by the single-turn algorithm as it is, with its value function where it has one
 */
export function criticAdvantages(row: CriticRow, options: GaeOptions): CriticEstimate {
  const { lossMask, sequenceOfToken, credits, values, penalties } = row;
  const tokensOf = new Map<number, number[]>();
  for (let t = 0; t < lossMask.length; t += 1) {
    if (lossMask[t] !== 1) continue;
    const sequence = sequenceOfToken[t] ?? 0;
    const tokens = tokensOf.get(sequence);
    if (tokens === undefined) tokensOf.set(sequence, [t]);
    else tokens.push(t);
  }
  const advantages = new Float64Array(lossMask.length);
  const returns = new Float64Array(lossMask.length);
  for (const tokens of tokensOf.values()) {
    const last = tokens.at(-1);
    const rewards_T = tokens.map((t) => (t === last ? (credits[t] ?? 0) : 0) - (penalties?.[t] ?? 0));
    const values_T1 = [...tokens.map((t) => values[t] ?? 0), 0];
    const advantages_T = gae(rewards_T, values_T1, options);
    for (const [at, t] of tokens.entries()) {
      advantages[t] = advantages_T[at] ?? 0;
      returns[t] = (advantages_T[at] ?? 0) + (values_T1[at] ?? 0);
    }
  }
  return { advantages, returns };
}
