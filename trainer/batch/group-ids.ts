import { FulgurError } from "#shared/errors.ts";

/**
 * Ids of groups and rollouts, made of the run, the group's number and the step at which it was started. Deterministic,
 * so that creating them again after a crash creates nothing new; padded, so that their order as text is the order in
 * which they were started.
 */

/** The id after `last`, which is undefined before the first. */
export function nextGroupId(runId: string, last: string | undefined, step: number): { groupId: string; index: number } {
  const index = last === undefined ? 0 : read(last).index + 1;
  return { groupId: `gr_${runId}_${String(index).padStart(7, "0")}_${step}`, index };
}

/** Steps that had been trained when the group was started. */
export function startedAtStep(groupId: string): number {
  return read(groupId).step;
}

export function rolloutIdOf(groupId: string, member: number): string {
  return `ro_${groupId.slice("gr_".length)}_${String(member).padStart(3, "0")}`;
}

function read(groupId: string): { index: number; step: number } {
  const match = /_(\d{7,})_(\d+)$/.exec(groupId);
  if (match === null) {
    throw new FulgurError(
      "ERR_CONFLICT",
      `group ${groupId} belongs to the run but was not started by its trainer; start a run with another id`,
    );
  }
  return { index: Number(match[1]), step: Number(match[2]) };
}
