import type { LossRow } from "../../../trainer/loss/loss-row.ts";

/** A prompt token and one action token whose policy is `ratio` times as likely to say it as what sampled it was. */
export function oneToken({ ratio, advantage }: { readonly ratio: number; readonly advantage: number }): LossRow {
  return {
    rollout: 0,
    lossMask: Uint8Array.of(0, 1),
    advantages: [0, advantage],
    behaviourLogprobs: [0, -2],
    proximalLogprobs: [0, -2],
    policyLogprobs: [0, -2 + Math.log(ratio)],
  };
}
