import type { LossRow } from "./loss-row.ts";

export interface DpoResult {
  readonly loss: number;
  /** One per row, [T]; 0 where the mask is 0 and for rows in no pair. */
  readonly dLogprobs: readonly Float32Array[];
  readonly pairs: number;
}

interface Rollout {
  /** Indices of its rows. */
  readonly rows: number[];
  /** Σ over action tokens of log π − log π_reference. */
  logRatio: number;
  advantage: number;
  tokens: number;
}

/**
 * Direct preference: in each group, the rollout with the highest mean advantage against the one with the lowest,
 * −log σ(β·(Δ_chosen − Δ_rejected)), Δ the log-ratio of all that a rollout's policy said to the reference's; mean over
 * the pairs. Groups whose rollouts did equally well give no pair. No behaviour log-probabilities are needed.
 * @param rows with reference logprobs
 * @param beta the strength of the pull to the reference, per nat
 * @see Rafailov et al. 2023, arXiv:2305.18290
 */
export function dpoLoss(rows: readonly LossRow[], { beta }: { readonly beta: number }): DpoResult {
  const pairs = [...groupRollouts(rows).values()].flatMap((rollouts) => bestAndWorst(rollouts));
  const dLogprobs = rows.map((row) => new Float32Array(row.lossMask.length));
  let loss = 0;
  for (const { chosen, rejected } of pairs) {
    const margin = beta * (chosen.logRatio - rejected.logRatio);
    loss += softplus(-margin) / pairs.length;
    // d softplus(−m)/dm = −σ(−m), and dm/dΔ = ±β; Δ is a sum over tokens, so that all of them pull alike.
    const pull = (beta * sigmoid(-margin)) / pairs.length;
    for (const at of chosen.rows) fill(dLogprobs[at], rows[at], -pull);
    for (const at of rejected.rows) fill(dLogprobs[at], rows[at], pull);
  }
  return { loss, dLogprobs, pairs: pairs.length };
}

function groupRollouts(rows: readonly LossRow[]): Map<number, Rollout[]> {
  const rollouts = new Map<number, Rollout>();
  const groups = new Map<number, Rollout[]>();
  for (const [at, row] of rows.entries()) {
    let rollout = rollouts.get(row.rollout);
    if (rollout === undefined) {
      rollout = { rows: [], logRatio: 0, advantage: 0, tokens: 0 };
      rollouts.set(row.rollout, rollout);
      groups.set(row.group ?? 0, [...(groups.get(row.group ?? 0) ?? []), rollout]);
    }
    rollout.rows.push(at);
    for (let t = 0; t < row.lossMask.length; t += 1) {
      if (row.lossMask[t] !== 1) continue;
      rollout.logRatio += (row.policyLogprobs[t] ?? 0) - (row.referenceLogprobs?.[t] ?? 0);
      rollout.advantage += row.advantages[t] ?? 0;
      rollout.tokens += 1;
    }
  }
  return groups;
}

function bestAndWorst(rollouts: readonly Rollout[]): { chosen: Rollout; rejected: Rollout }[] {
  const ordered = rollouts
    .filter((rollout) => rollout.tokens > 0)
    .toSorted((a, b) => b.advantage / b.tokens - a.advantage / a.tokens);
  const chosen = ordered[0];
  const rejected = ordered.at(-1);
  if (chosen === undefined || rejected === undefined) return [];
  return chosen.advantage / chosen.tokens > rejected.advantage / rejected.tokens ? [{ chosen, rejected }] : [];
}

function fill(d_T: Float32Array | undefined, row: LossRow | undefined, pull: number): void {
  row?.lossMask.forEach((bit, t) => {
    if (d_T !== undefined && bit === 1) d_T[t] = pull;
  });
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

/** log(1 + eˣ) without overflow. */
function softplus(x: number): number {
  return Math.max(0, x) + Math.log1p(Math.exp(-Math.abs(x)));
}
