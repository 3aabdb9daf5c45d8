import { z } from "zod";
import type { Records, RolloutRecord } from "../records.ts";
import { selectCalls } from "../credit/roles.ts";
import type { SiftedGroup, SiftOptions, TrainingRollout } from "./sift.ts";
import { stalenessOf } from "./staleness.ts";
import { buildTrajectory, oldestVersion } from "./trajectories.ts";

/**
 * Replay: groups of earlier batches that a step trains on again. To the store nothing changes by it: a rollout still is in
 * one batch, was trained by it, and keeps that one disposition; what is repeated are its rows, inside the trainer.
 *
 * Kept are names and advantages alone; the rows are read from the store when they are needed, so a person who was deleted
 * is gone from here too. Replayed rows are never fresh: they are scored and weighted as any old sample is. Nothing is
 * drawn: the state decides, so that a resumed run replays what an unkilled one does.
 */

export const replayStateSchema = z.array(
  z.strictObject({
    batchId: z.string(),
    groupId: z.string(),
    /** Steps that had been trained before its own. */
    step: z.int(),
    /** Times that it has been trained on again. */
    uses: z.int(),
    /** Mean of |advantage| over its transitions, as its group gave them. */
    weight: z.number(),
    /** As its own step had them: baselines have moved since. */
    rollouts: z.array(z.strictObject({ id: z.string(), advantages: z.array(z.number()) })),
  }),
);
export type ReplayState = z.infer<typeof replayStateSchema>;
type KeptGroup = ReplayState[number];

/** Older groups are forgotten: weights of samples that old are cut off, or next to nothing. */
const MAX_AGE = 8;
/** Groups that are kept for each that a step replays. */
const CHOICE = 8;

/** Falls to half in two steps, and to half with each use. */
function priority({ weight, step, uses }: KeptGroup, now: number): number {
  return weight * 2 ** (-(now - step) / 2 - uses);
}

/** The groups that a step replays: so many of the highest priority. */
export function chooseReplay(state: ReplayState, step: number, count: number): ReplayState {
  return byPriority(state, step).slice(0, count);
}

/** The state after a step that trained a batch, and `replayed` again. */
export function remember(
  state: ReplayState,
  trained: { readonly batchId: string; readonly groups: readonly SiftedGroup[]; readonly replayed: ReplayState },
  { step, count }: { readonly step: number; readonly count: number },
): ReplayState {
  if (count === 0) return [];
  const used = new Set(trained.replayed.map((group) => group.groupId));
  const kept = state
    .map((group) => (used.has(group.groupId) ? { ...group, uses: group.uses + 1 } : group))
    .filter((group) => step + 1 - group.step <= MAX_AGE);
  const fresh = trained.groups.map(({ groupId, rollouts }) => ({
    batchId: trained.batchId,
    groupId,
    step,
    uses: 0,
    weight: meanMagnitude(rollouts),
    rollouts: rollouts.map(({ record, advantages_T }) => ({ id: record.id, advantages: [...advantages_T] })),
  }));
  return byPriority([...kept, ...fresh], step + 1).slice(0, CHOICE * count);
}

/** Reads chosen groups' rows. Rollouts that the store has no longer, or no longer whole, are left out. */
export async function recall(
  chosen: ReplayState,
  records: Pick<Records, "batchRollouts">,
  options: Pick<SiftOptions, "lineage" | "step" | "roles" | "needsLogprobs">,
): Promise<SiftedGroup[]> {
  const found = new Map<string, RolloutRecord>();
  for (const batchId of new Set(chosen.map((group) => group.batchId))) {
    for (const record of await records.batchRollouts(batchId)) found.set(record.id, record);
  }
  return chosen.flatMap(({ groupId, weight, rollouts }) => {
    const whole = rollouts.flatMap(({ id, advantages }): TrainingRollout[] => {
      const record = found.get(id);
      if (record === undefined) return [];
      const trajectory = buildTrajectory(selectCalls(record.calls, options.roles), options);
      const sampledBy = oldestVersion(trajectory.transitions);
      if (sampledBy === undefined || trajectory.transitions.length !== advantages.length) return [];
      const staleness = stalenessOf(options.lineage, options.step, sampledBy);
      return [{ record, trajectory, advantages_T: Float64Array.from(advantages), staleness }];
    });
    return whole.length === 0 ? [] : [{ groupId, spread: weight, rollouts: whole }];
  });
}

/** What of a step's rows came from here; the batch's own numbers leave them out. Explained in docs/METRICS.md. */
export function replayMetrics(replayed: readonly SiftedGroup[]): Record<string, number> {
  const rollouts = replayed.flatMap((group) => group.rollouts);
  const total = rollouts.reduce((sum, each) => sum + each.staleness, 0);
  return {
    replayed_groups: replayed.length,
    replayed_rollouts: rollouts.length,
    replayed_staleness_mean: rollouts.length === 0 ? 0 : total / rollouts.length,
  };
}

/** By priority, then by name: an order that does not depend on the one before. */
function byPriority(state: ReplayState, step: number): ReplayState {
  return state.toSorted((a, b) => priority(b, step) - priority(a, step) || (a.groupId < b.groupId ? -1 : 1));
}

function meanMagnitude(rollouts: readonly TrainingRollout[]): number {
  const all = rollouts.flatMap(({ advantages_T }) => [...advantages_T]);
  return all.reduce((sum, advantage) => sum + Math.abs(advantage), 0) / Math.max(1, all.length);
}
