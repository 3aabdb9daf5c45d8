import type { LossRow } from "./loss-row.ts";
import { sequenceMeans } from "./sequences.ts";

/**
 * Takes out of the loss the sequences whose policy is too far from what sampled them, by the geometric mean of their
 * tokens' π/β; π is the policy at the batch's first update. One token that inference and training disagree about is
 * truncated; a sequence full of them came from another policy, and weighing it cannot make it this one's.
 *
 * They leave the loss mask, so that they do not count where the loss is divided by tokens or sequences either.
 * @see Liu et al. 2025, When Speed Kills Stability: masked importance sampling over sequences
 */
export function maskSequences(
  rows: readonly LossRow[],
  { low, high }: { readonly low: number; readonly high: number },
): LossRow[] {
  return rows.map((row) => {
    const proximal = row.proximalLogprobs ?? row.policyLogprobs;
    const means_T = sequenceMeans(row, (t) => (proximal[t] ?? 0) - (row.behaviourLogprobs[t] ?? 0));
    const lossMask = row.lossMask.map((bit, t) => {
      const mean = Math.exp(means_T[t] ?? 0);
      return bit === 1 && mean >= low && mean <= high ? 1 : 0;
    });
    return { ...row, lossMask };
  });
}
