import { z } from "zod";

/**
 * Baselines for rollouts that are alone in their group, as a user's live request is: nothing else was tried at the same
 * task, so they are compared with what the policy earned elsewhere.
 */

export const loneSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("batch") }),
  z.strictObject({
    type: z.literal("ema"),
    /** What is left of the average after one more rollout. */
    decay: z.number().min(0).max(0.9999).default(0.99),
  }),
]);
export type LoneConfig = z.infer<typeof loneSchema>;

/** What the `ema` baseline remembers from batch to batch, one for each policy; belongs in the checkpoint. */
export const baselineStateSchema = z.strictObject({
  /** Moving average of lone rollouts' mean credit, in units of reward. */
  mean: z.number(),
  /** Rollouts that it has seen. */
  rollouts: z.int().min(0),
});
export type BaselineState = z.infer<typeof baselineStateSchema>;

export const NO_BASELINE: BaselineState = { mean: 0, rollouts: 0 };

/**
 * Advantages of a batch's lone rollouts, and the state after it.
 *
 * `batch`: credit minus the mean of the batch's other lone rollouts. `ema`: credit minus the average of the batches
 * before, so that no rollout is part of its own baseline; the first batch has none before it and takes `batch`.
 * A lone rollout with nothing to be compared with gets 0.
 * @param credits_RT of every lone rollout of the batch, in an order that is the same after a crash
 */
export function loneAdvantages(
  credits_RT: readonly Float64Array[],
  config: LoneConfig,
  state: BaselineState,
): { readonly advantages_RT: Float64Array[]; readonly state: BaselineState } {
  const means_R = credits_RT.map((credits_T) => credits_T.reduce((sum, credit) => sum + credit, 0) / credits_T.length);
  const total = means_R.reduce((sum, mean) => sum + mean, 0);
  const advantages_RT = credits_RT.map((credits_T, at) => {
    if (config.type === "ema" && state.rollouts > 0) return credits_T.map((credit) => credit - state.mean);
    if (means_R.length < 2) return new Float64Array(credits_T.length);
    const others = (total - (means_R[at] ?? 0)) / (means_R.length - 1);
    return credits_T.map((credit) => credit - others);
  });
  return { advantages_RT, state: config.type === "ema" ? means_R.reduce(remember(config.decay), state) : state };
}

/** A plain mean until it has seen 1/(1 − decay) rollouts: the average never leans towards where it began. */
function remember(decay: number): (state: BaselineState, credit: number) => BaselineState {
  return ({ mean, rollouts }, credit) => {
    const rate = Math.max(1 - decay, 1 / (rollouts + 1));
    return { mean: mean + rate * (credit - mean), rollouts: rollouts + 1 };
  };
}

/**
 * The rollouts of a batch's groups, with those that are alone in theirs compared; groups of several stay as they are,
 * so that a batch may mix the two.
 * @param groups whose advantages are final, or raw credits where the group is one rollout
 * @returns rollouts_GR, in the order of the groups
 */
export function compareLone<Rollout extends { readonly advantages_T: Float64Array }>(
  groups: readonly { readonly rollouts: readonly Rollout[] }[],
  config: LoneConfig,
  state: BaselineState,
): { readonly rollouts_GR: Rollout[][]; readonly state: BaselineState } {
  const lone = groups.filter((group) => group.rollouts.length === 1);
  const compared = loneAdvantages(
    lone.flatMap((group) => group.rollouts.map((rollout) => rollout.advantages_T)),
    config,
    state,
  );
  const rollouts_GR = groups.map((group) => {
    const advantages_T = compared.advantages_RT[lone.indexOf(group)];
    return group.rollouts.map((rollout) => (advantages_T === undefined ? rollout : { ...rollout, advantages_T }));
  });
  return { rollouts_GR, state: compared.state };
}
