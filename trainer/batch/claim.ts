import { FulgurError } from "#shared/errors.ts";
import type { EdgeClient } from "#shared/client.ts";
import { algorithmOf, stalenessBound, trainedRoles, type TrainerConfig } from "../config.ts";
import type { Records, RolloutRecord, WaitingGroup } from "../records.ts";
import { nextGroupId, rolloutIdOf, startedAtStep } from "./group-ids.ts";
import { capacity } from "./pace.ts";
import { sift, type Sifted, type SiftedGroup } from "./sift.ts";
import { isDue, type Lineage } from "./staleness.ts";
import { taskOfGroup } from "./task-order.ts";

/** So many batches of groups may fail while one step waits, before that is taken for an outage. */
const LOST_BATCHES = 4;

/** So many groups in a row without a spread mean that the rewards no longer vary, and are not mere chance. */
const HOPELESS_GROUPS = 64;

/** What gathering a batch needs of the world. */
export interface ClaimDeps {
  readonly config: TrainerConfig;
  readonly edge: Pick<EdgeClient, "createRollouts" | "claimBatch" | "dropRollouts">;
  readonly records: Pick<Records, "waitingGroups" | "batchRollouts" | "lastGroupId">;
  readonly taskIds: readonly string[];
  /** Resolves after so many milliseconds. @throws the signal's reason once the run is to end */
  readonly pause: (ms: number) => Promise<void>;
  readonly now: () => number;
  readonly onWaiting?: (done: number, total: number) => void;
}

export interface ClaimPosition {
  /** Steps trained so far; the batch is for the next one. */
  readonly step: number;
  readonly lineage: Lineage;
}

/** A batch ready to be trained on. */
export interface Batch {
  readonly batchId: string;
  readonly groups: readonly SiftedGroup[];
  /** All that was claimed, also what was dropped for its lack of spread: the means of a step are over these. */
  readonly claimed: readonly RolloutRecord[];
  /** Groups that were claimed, and those of them without a spread. */
  readonly claimedGroups: number;
  readonly flatGroups: number;
  readonly stale: number;
}

/** The batch of a step: a function of both, so that a claim repeated after a crash is the same claim. */
export function batchIdOf(runId: string, step: number): string {
  return `ba_${runId}_${String(step).padStart(6, "0")}`;
}

/**
 * Starts rollouts as long as there is capacity, waits for groups to end, claims them, and sifts out what cannot train;
 * groups without a spread are replaced, up to `refillGroups` of them. Every part may be repeated: after a crash the
 * batch is found in the store with what it had claimed.
 * @returns undefined when none of very many groups has a spread: the rewards no longer vary
 * @throws FulgurError ERR_TIMEOUT when no rollout ends for `wedgeMinutes`, ERR_CONFIG when no rollout has a call of a
 * role that is trained
 */
export async function gatherBatch(deps: ClaimDeps, position: ClaimPosition): Promise<Batch | undefined> {
  const { config, edge, records } = deps;
  const { credit, advantage } = algorithmOf(config);
  const { step, lineage } = position;
  const batchId = batchIdOf(config.run, step);
  const groups: SiftedGroup[] = [];
  const claimed: RolloutRecord[] = [];
  const flat = new Set<string>();
  let stale = 0;
  const seen = new Set<string>();
  for (;;) {
    const fresh = (await records.batchRollouts(batchId)).filter((record) => !seen.has(record.id));
    for (const record of fresh) seen.add(record.id);
    const maxStaleness = stalenessBound(config);
    const sifted = sift(fresh, { credit, advantage, lineage, step, maxStaleness, roles: trainedRoles(config) });
    if (groups.length === 0) checkRoles(config, fresh, sifted);
    groups.push(...sifted.groups);
    for (const [reason, ids] of sifted.dropped) {
      await edge.dropRollouts(ids, reason);
      if (reason === "stale") stale += ids.length;
      const groupOf = new Map(fresh.map((record) => [record.id, record.groupId]));
      if (reason === "zero_spread") for (const id of ids) flat.add(groupOf.get(id) ?? id);
    }
    // Stale rollouts earned what an older policy earns: they are no measure of this step.
    const tooOld = new Set(sifted.dropped.get("stale"));
    claimed.push(...fresh.filter((record) => !tooOld.has(record.id)));

    const missing = config.groups - groups.length;
    const refill = Math.min(missing, missing + config.refillGroups - flat.size);
    // A step takes one group at least, whatever the bound on replacements.
    const wanted = groups.length > 0 ? refill : Math.max(refill, Math.min(missing, HOPELESS_GROUPS - flat.size));
    if (wanted <= 0) break;
    await waitForGroups(deps, position, { held: groups.length, wanted });
    await edge.claimBatch({ batchId, runId: config.run, policy: config.policy, step, groups: wanted });
  }
  if (groups.length === 0) return undefined;
  const claimedGroups = new Set(claimed.map((record) => record.groupId)).size;
  return { batchId, groups, claimed, claimedGroups, flatGroups: flat.size, stale };
}

/** Rollouts would be made for ever without one that trains, where the agent knows none of the roles. */
function checkRoles({ roles }: TrainerConfig, fresh: readonly RolloutRecord[], { dropped }: Sifted): void {
  const mute = dropped.get("no_trainable_call")?.length ?? 0;
  if (roles === undefined || mute === 0 || mute < fresh.length) return;
  const seen = new Set(fresh.flatMap((record) => record.calls.map((call) => call.role)));
  throw new FulgurError(
    "ERR_CONFIG",
    `none of ${mute} rollouts has a trainable call of --roles ${roles}; their calls have the roles ${[...seen].toSorted().join(", ")}, as the agent's model map names them`,
  );
}

/** Keeps the line of rollouts as long as the pace allows; at each call as many groups as are missing. */
export async function startRollouts(
  deps: Pick<ClaimDeps, "config" | "edge" | "records" | "taskIds">,
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

/** Waits until so many groups can be claimed, starting new ones where there is room and dropping what never can be. */
async function waitForGroups(
  deps: ClaimDeps,
  { step }: ClaimPosition,
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
    const alone = waiting.filter((group) => group.open === 0 && group.finished < 2);
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
    const ready = waiting.filter((group) => group.open === 0).length;
    const overdue =
      config.whenStale === "wait"
        ? waiting.filter((group) => group.open > 0 && isDue(startedAtStep(group.groupId), step, maxStaleness)).length
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
