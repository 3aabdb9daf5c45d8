import { groupAdvantage, type AdvantageConfig } from "../advantage/advantage.ts";
import { assignCredit, type CreditConfig } from "../credit/credit.ts";
import { selectCalls } from "../credit/roles.ts";
import type { RolloutRewards } from "../credit/rollout-rewards.ts";
import type { IntermediateReward, RolloutRecord } from "../records.ts";
import type { DropReason } from "#shared/words.ts";
import { stalenessOf, type Lineage } from "./staleness.ts";
import { buildTrajectory, oldestVersion, type Trajectory } from "./trajectories.ts";

/** A rollout that trains: its rows, and the advantage of each of its transitions. */
export interface TrainingRollout {
  readonly record: RolloutRecord;
  readonly trajectory: Trajectory;
  readonly advantages_T: Float64Array;
  /** Versions behind the current one, by its oldest call. */
  readonly staleness: number;
}

/** What becomes of a batch's rollouts: those that train, in groups, and those that are dropped, with the reason. */
export interface Sifted {
  readonly groups: readonly SiftedGroup[];
  readonly dropped: ReadonlyMap<DropReason, readonly string[]>;
}

export interface SiftedGroup {
  readonly groupId: string;
  /** Standard deviation of its rollouts' mean credits, in units of reward. */
  readonly spread: number;
  readonly rollouts: readonly TrainingRollout[];
}

export interface SiftOptions {
  readonly credit: CreditConfig;
  readonly advantage: AdvantageConfig;
  readonly lineage: Lineage;
  /** Steps trained so far. */
  readonly step: number;
  readonly maxStaleness: number;
  /** Roles whose calls are trained on; absent is all. */
  readonly roles?: readonly string[] | undefined;
  /** As in trajectories.ts. */
  readonly needsLogprobs?: boolean;
}

/**
 * Turns claimed rollouts into training rollouts. Dropped are those without a reward or a trainable call, those that are
 * too old, and groups that are left without a spread: their advantages would be 0 (or, by float noise, worse).
 */
export function sift(records: readonly RolloutRecord[], options: SiftOptions): Sifted {
  const { credit, advantage, lineage, step, maxStaleness, roles, needsLogprobs = true } = options;
  const dropped = new Map<DropReason, string[]>();
  const drop = (reason: DropReason, ids: readonly string[]): void => {
    dropped.set(reason, [...(dropped.get(reason) ?? []), ...ids]);
  };
  const groups: SiftedGroup[] = [];
  for (const [groupId, members] of Map.groupBy(records, (record) => record.groupId)) {
    const fit = [];
    for (const record of members) {
      const trajectory = buildTrajectory(selectCalls(record.calls, roles), { needsLogprobs });
      const sampledBy = oldestVersion(trajectory.transitions);
      const rewards = rewardsOf(record, trajectory);
      if (rewards === undefined) drop("no_reward", [record.id]);
      else if (sampledBy === undefined) drop("no_trainable_call", [record.id]);
      else {
        const staleness = stalenessOf(lineage, step, sampledBy);
        if (staleness > maxStaleness) drop("stale", [record.id]);
        else fit.push({ record, trajectory, staleness, credits_T: assignCredit(rewards, credit) });
      }
    }
    const { advantages_RT, spread, flat } = groupAdvantage(
      fit.map((each) => each.credits_T),
      advantage,
    );
    if (fit.length === 0) continue;
    if (flat) {
      drop(
        "zero_spread",
        fit.map((each) => each.record.id),
      );
      continue;
    }
    const rollouts = fit.map(({ record, trajectory, staleness }, at) => ({
      record,
      trajectory,
      staleness,
      advantages_T: advantages_RT[at] ?? new Float64Array(trajectory.transitions.length),
    }));
    groups.push({ groupId, spread, rollouts });
  }
  return { groups, dropped };
}

/** What a rollout earned, laid along its transitions; undefined where it has no reward at all. */
function rewardsOf(
  { reward, outcome, calls, intermediate }: RolloutRecord,
  { transitions }: Trajectory,
): RolloutRewards | undefined {
  if (reward === null) return undefined;
  const callOfTool = new Map(calls.flatMap((call) => call.toolCallIds.map((toolCallId) => [toolCallId, call.callId])));
  const intermediate_T = transitions.map(() => 0);
  for (const each of intermediate) {
    const at = transitionOf(each, transitions, callOfTool);
    intermediate_T[at] = (intermediate_T[at] ?? 0) + each.value;
  }
  const responseTokens_T = transitions.map((transition) => transition.response.length);
  return { total: reward, terminal: outcome?.terminal ?? reward, intermediate_T, responseTokens_T };
}

/** The transition that made the tool call; the last one for a reward that belongs to none that is trained. */
function transitionOf(
  reward: IntermediateReward,
  transitions: Trajectory["transitions"],
  callOfTool: ReadonlyMap<string, string>,
): number {
  const callId = (reward.toolCallId === null ? undefined : callOfTool.get(reward.toolCallId)) ?? reward.callId;
  const at = transitions.findIndex((transition) => transition.callId === callId);
  return at < 0 ? Math.max(0, transitions.length - 1) : at;
}
