import { FulgurError } from "#shared/errors.ts";
import { stalenessBound } from "../config.ts";
import type { WaitingGroup } from "../records.ts";
import type { ClaimDeps, ClaimPosition } from "./claim.ts";
import { nextGroupId, rolloutIdOf, startedAtStep } from "./group-ids.ts";
import { capacity } from "./pace.ts";
import { isDue } from "./staleness.ts";
import { taskOfGroup } from "./task-order.ts";

/** So many batches of groups may fail while one step waits, before that is taken for an outage. */
const LOST_BATCHES = 4;

/**
 * Waits until so many groups of the run's own rollouts can be claimed, starting new ones where there is room and dropping
 * what never can be.
 * @param need groups that the batch holds already, and those that it lacks
 * @throws FulgurError ERR_TIMEOUT when no rollout ends for `wedgeMinutes`, ERR_UPSTREAM when group after group fails
 */
export async function waitForGroups(
  deps: ClaimDeps,
  { step }: Pick<ClaimPosition, "step">,
  { held, wanted }: { readonly held: number; readonly wanted: number },
): Promise<void> {
  const { config, edge, records } = deps;
  const maxStaleness = stalenessBound(config);
  let progressAt = deps.now();
  let ended = -1;
  let startedGroups = 0;
  let oldest: string | undefined;
  for (;;) {
    let waiting = await records.waitingGroups(config.run, oldest);
    oldest = waiting[0]?.groupId ?? oldest;
    // An ended group with one finished rollout has nothing to be compared with.
    const alone = waiting.filter((group) => group.open.length === 0 && group.finished < 2);
    if (alone.length > 0) {
      await edge.dropRollouts(
        alone.flatMap((group) => group.rolloutIds),
        "zero_spread",
      );
      waiting = waiting.filter((group) => !alone.includes(group));
    }
    startedGroups += await startRollouts(deps, { step, waiting, held });
    // The line is filled once; what is started beyond that takes the place of groups that were lost.
    if (startedGroups > (maxStaleness + 1 + LOST_BATCHES) * config.groups) {
      throw new FulgurError(
        "ERR_UPSTREAM",
        `step ${step + 1} of run ${config.run} has lost over ${LOST_BATCHES * config.groups} groups, because their rollouts fail; see npx fulgur rollouts --status failed, then start again: the run resumes`,
      );
    }
    const ready = waiting.filter((group) => group.open.length === 0).length;
    const overdue =
      config.whenStale === "wait"
        ? waiting.filter((group) => group.open.length > 0 && isDue(startedAtStep(group.groupId), step, maxStaleness))
            .length
        : 0;
    // With wait, what is started now would be due at once when K is 0; then only the count matters.
    if (ready >= wanted && (overdue === 0 || maxStaleness === 0)) return;
    const endedNow = waiting.reduce((sum, group) => sum + group.finished, 0);
    if (endedNow !== ended) {
      ended = endedNow;
      progressAt = deps.now();
    }
    if (deps.now() - progressAt > config.wedgeMinutes * 60_000) {
      throw new FulgurError(
        "ERR_TIMEOUT",
        `step ${step + 1} of run ${config.run} waits for ${wanted} groups, ${ready} are ready, and no rollout has ended for ${config.wedgeMinutes} minutes; see the logs of the edge and of inference, then start again: the run resumes`,
      );
    }
    deps.onWaiting?.(Math.min(ready, wanted), wanted);
    await deps.pause(config.pollMs);
  }
}

/** Keeps the line of rollouts as long as the pace allows; at each call as many groups as are missing. */
async function startRollouts(
  deps: ClaimDeps,
  { step, waiting, held }: { readonly step: number; readonly waiting: readonly WaitingGroup[]; readonly held: number },
): Promise<number> {
  const { config, edge, records, taskIds } = deps;
  const room = capacity({
    maxStaleness: stalenessBound(config),
    groups: config.groups,
    stepsLeft: config.steps - step,
    waiting: waiting.length,
    claimed: held,
  });
  if (room === 0) return 0;
  let last = await records.lastGroupId(config.run);
  const rollouts = Array.from({ length: room }, () => {
    const { groupId, index } = nextGroupId(config.run, last, step);
    last = groupId;
    const taskId = taskOfGroup(taskIds, index, config.seed);
    if (taskId === undefined) {
      throw new FulgurError(
        "ERR_CONFIG",
        `agent ${config.agent} has no train tasks in the store; create some with POST /v1/tasks`,
      );
    }
    return Array.from({ length: config.groupSize }, (_, member) => ({
      id: rolloutIdOf(groupId, member),
      taskId,
      agent: config.agent,
      mode: "train" as const,
      groupId,
      runId: config.run,
      maxAttempts: config.maxAttempts,
    }));
  }).flat();
  // A request takes 1,000 rollouts; groups are kept whole in one, because one request is one commit.
  const perRequest = Math.max(1, Math.floor(1000 / config.groupSize)) * config.groupSize;
  for (let at = 0; at < rollouts.length; at += perRequest) {
    await edge.createRollouts(rollouts.slice(at, at + perRequest));
  }
  return room;
}
