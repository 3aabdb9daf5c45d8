import { FulgurError } from "#shared/errors.ts";
import type { EdgeClient } from "#shared/client.ts";
import { MIN_SPREAD } from "../advantage/advantage.ts";
import { compareLone, type BaselineState, type LoneConfig } from "../advantage/lone-baseline.ts";
import { algorithmOf, stalenessBound, trainedCalls, type TrainerConfig } from "../config.ts";
import { selectCalls } from "../credit/roles.ts";
import type { Records, RolloutRecord } from "../records.ts";
import { waitForLive } from "./live-traffic.ts";
import { waitForGroups } from "./own-rollouts.ts";
import { sift, type Sifted, type SiftedGroup } from "./sift.ts";
import type { Lineage } from "./staleness.ts";

/** So many groups in a row without a spread mean that the rewards no longer vary, and are not mere chance. */
const HOPELESS_GROUPS = 64;

/** What gathering a batch needs of the world. */
export interface ClaimDeps {
  readonly config: TrainerConfig;
  readonly edge: Pick<EdgeClient, "createRollouts" | "claimBatch" | "dropRollouts">;
  readonly records: Pick<
    Records,
    "waitingGroups" | "batchRollouts" | "flatRollouts" | "lastGroupId" | "countLive" | "policy"
  >;
  readonly taskIds: readonly string[];
  /** Resolves after so many milliseconds. @throws the signal's reason once the run is to end */
  readonly pause: (ms: number) => Promise<void>;
  readonly now: () => number;
  readonly onWaiting?: (done: number, total: number) => void;
  readonly warn?: (message: string) => void;
}

export interface ClaimPosition {
  /** Steps trained so far; the batch is for the next one. */
  readonly step: number;
  readonly lineage: Lineage;
  /** What rollouts that are alone in their groups are compared with. */
  readonly baseline: BaselineState;
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
  /** For the next batch. */
  readonly baseline: BaselineState;
}

/** The batch of a step: a function of both, so that a claim repeated after a crash is the same claim. */
export function batchIdOf(runId: string, step: number): string {
  return `ba_${runId}_${String(step).padStart(6, "0")}`;
}

/**
 * Waits for groups to end (starting rollouts as long as there is capacity, or for live traffic to come), claims them, and
 * sifts out what cannot train; groups without a spread are replaced, up to `refillGroups` of them. Every part may be
 * repeated: after a crash the batch is found in the store with what it had claimed.
 * @returns undefined when none of very many groups has a spread: the rewards no longer vary
 * @throws FulgurError ERR_TIMEOUT when no rollout ends for `wedgeMinutes`, ERR_CONFIG when no rollout has a call of a
 * role that is trained, or one with the log-probabilities that the loss needs
 */
export async function gatherBatch(deps: ClaimDeps, position: ClaimPosition): Promise<Batch | undefined> {
  const { config, edge, records } = deps;
  const { credit, advantage } = algorithmOf(config);
  const { step, lineage } = position;
  const batchId = batchIdOf(config.run, step);
  let groups: SiftedGroup[] = [];
  // What a start before this one has passed over counts, or the batch would be refilled twice.
  const claimed = await records.flatRollouts(batchId);
  const flat = new Set(claimed.map((record) => record.groupId));
  let stale = 0;
  const seen = new Set<string>();
  for (;;) {
    // In one order, whatever the order in which they came: sums of floats then are the same after a crash.
    const fresh = (await records.batchRollouts(batchId)).filter((record) => !seen.has(record.id)).toSorted(byId);
    for (const record of fresh) seen.add(record.id);
    const maxStaleness = stalenessBound(config);
    const sifted = sift(fresh, { credit, advantage, lineage, step, maxStaleness, ...trainedCalls(config) });
    if (groups.length === 0) checkCalls(config, fresh, sifted);
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

    const wanted = groupsWanted(config, { held: groups.length, flat: flat.size });
    if (wanted > 0) {
      const claim = { batchId, runId: config.run, policy: config.policy, step, groups: wanted };
      if (config.live) {
        await edge.claimBatch({ ...claim, live: await waitForLive(deps, position, wanted) });
      } else {
        await waitForGroups(deps, position, { held: groups.length, wanted });
        await edge.claimBatch(claim);
      }
      continue;
    }
    if (groups.length === 0) return undefined;
    groups.sort((a, b) => (a.groupId < b.groupId ? -1 : 1));
    claimed.sort(byId);
    const alone = "alone" in advantage ? advantage.alone : undefined;
    const compared = alone === undefined ? undefined : compareAlone(groups, alone, position.baseline);
    if (compared === undefined || compared.groups.some((group) => group.spread >= MIN_SPREAD)) {
      const claimedGroups = new Set(claimed.map((record) => record.groupId)).size;
      const { baseline } = position;
      return { batchId, groups, baseline, ...compared, claimed, claimedGroups, flatGroups: flat.size, stale };
    }
    // All of them earned what was expected of them.
    await edge.dropRollouts(
      groups.flatMap((group) => group.rollouts.map(({ record }) => record.id)),
      "zero_spread",
    );
    for (const { groupId } of groups) flat.add(groupId);
    groups = [];
  }
}

function byId(a: RolloutRecord, b: RolloutRecord): number {
  return a.id < b.id ? -1 : 1;
}

/** Groups to claim now; 0 when the batch is complete, or will not be. */
function groupsWanted(config: TrainerConfig, { held, flat }: { readonly held: number; readonly flat: number }): number {
  const missing = config.groups - held;
  // The next user may be of another mind.
  if (config.live) return missing;
  const refill = Math.min(missing, missing + config.refillGroups - flat);
  // A step takes one group at least, whatever the bound on replacements.
  return held > 0 ? refill : Math.max(refill, Math.min(missing, HOPELESS_GROUPS - flat));
}

/** The groups with their lone rollouts compared; the spread of such a group is how far it is from its baseline. */
function compareAlone(
  groups: readonly SiftedGroup[],
  alone: LoneConfig,
  baseline: BaselineState,
): Pick<Batch, "groups" | "baseline"> {
  const { rollouts_GR, state } = compareLone(groups, alone, baseline);
  const compared = groups.map((group, at): SiftedGroup => {
    const rollouts = rollouts_GR[at] ?? group.rollouts;
    const [only] = rollouts;
    if (only === undefined || rollouts.length > 1) return group;
    const { advantages_T } = only;
    return {
      ...group,
      rollouts,
      spread: Math.abs(advantages_T.reduce((sum, each) => sum + each, 0)) / advantages_T.length,
    };
  });
  return { groups: compared, baseline: state };
}

/**
 * Rollouts would be made for ever without one that trains, where the agent knows none of the roles or the endpoint gives no
 * log-probabilities.
 */
function checkCalls(config: TrainerConfig, fresh: readonly RolloutRecord[], { dropped }: Sifted): void {
  const mute = dropped.get("no_trainable_call")?.length ?? 0;
  if (mute === 0 || mute < fresh.length) return;
  const { roles, needsLogprobs } = trainedCalls(config);
  const isSilent = (call: RolloutRecord["calls"][number]): boolean =>
    call.trainable && call.behaviourLogprobs?.length !== call.responseTokenIds?.length;
  if (needsLogprobs && fresh.some(({ calls }) => selectCalls(calls, roles).some(isSilent))) {
    throw new FulgurError(
      "ERR_CONFIG",
      `none of ${mute} rollouts has a call with log-probabilities, which --algorithm ${config.algorithm} weighs its samples by: have the inference endpoint give them (logprobs for every sampled token), or train with --algorithm sft or dpo, which do without`,
    );
  }
  if (roles === undefined) return;
  const seen = new Set(fresh.flatMap((record) => record.calls.map((call) => call.role)));
  throw new FulgurError(
    "ERR_CONFIG",
    `none of ${mute} rollouts has a trainable call of --roles ${roles.join(",")}; their calls have the roles ${[...seen].toSorted().join(", ")}, as the agent's model map names them`,
  );
}
