import { importanceWeight } from "../../trainer/loss/importance.ts";
import type { UserAlgorithm } from "../../trainer/user-algorithm.ts";

/**
 * An algorithm of one's own: `npx fulgur start --algorithm examples/algorithms/median-soft-clip.ts`.
 *
 * Its baseline is the group's median, which one lucky rollout does not move. Its ratio is bounded smoothly: where PPO
 * stops pulling beyond a bound, this pulls less and less (s·tanh(x/s) is x near 0 and never beyond ±s).
 */

/** How far from 1 a ratio counts at most. */
const SOFTNESS = 0.3;

export default {
  credit: { type: "identical" },

  advantage: (credits_RT) => {
    // Each rollout counts once, however many calls it made.
    const returns_R = credits_RT.map(
      (credits_T) => credits_T.reduce((sum, credit) => sum + credit, 0) / credits_T.length,
    );
    const baseline = median(returns_R);
    return credits_RT.map((credits_T) => credits_T.map((credit) => credit - baseline));
  },

  loss: ({ policyLogprob, proximalLogprob, behaviourLogprob, advantage }) => {
    const weight = importanceWeight(proximalLogprob, behaviourLogprob, { type: "truncated", cap: 2 });
    const ratio = Math.exp(policyLogprob - proximalLogprob);
    const bent = Math.tanh((ratio - 1) / SOFTNESS);
    return {
      loss: -weight * advantage * (1 + SOFTNESS * bent),
      // d tanh(x)/dx = 1 − tanh²(x), and d ratio/d policyLogprob = ratio.
      dLogprob: -weight * advantage * ratio * (1 - bent * bent),
    };
  },
} satisfies UserAlgorithm;

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  return ((sorted[Math.ceil(middle) - 1] ?? 0) + (sorted[Math.floor(middle)] ?? 0)) / 2;
}
