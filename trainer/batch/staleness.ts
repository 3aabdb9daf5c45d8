import { FulgurError } from "#shared/errors.ts";

/**
 * Staleness: how many of a run's versions lie between the one that sampled and the current one. Version numbers of a
 * run need not follow each other (other runs of the policy take numbers too), so age is counted along the run's own line.
 */
export interface Lineage {
  /** Version that the run began with. */
  readonly base: number;
  /** Numbers of the versions that its steps made, in order; that of the last step comes with its registration. */
  readonly made: readonly number[];
}

/** The version after so many steps of the run. @throws FulgurError ERR_SHAPE for a step whose version has no number yet */
export function versionAt({ base, made }: Lineage, step: number): number {
  const version = step === 0 ? base : made[step - 1];
  if (version === undefined) {
    throw new FulgurError("ERR_SHAPE", `the version of step ${step} was asked for, and ${made.length} are published`);
  }
  return version;
}

/**
 * Steps between the version that sampled and the current one.
 * @param step steps trained so far
 * @returns Infinity for a version that is not of this run's line
 */
export function stalenessOf(lineage: Lineage, step: number, sampledBy: number): number {
  const { base, made } = lineage;
  // Numbers only grow: searched from the end, where the young ones are.
  const at = sampledBy === base ? 0 : made.lastIndexOf(sampledBy) + 1;
  return (at === 0 && sampledBy !== base) || at > step ? Infinity : step - at;
}

/**
 * Whether a group of rollouts must be waited for, or it would be too old for the batch after this one.
 * @param startedAtStep steps trained when the group was started: its oldest possible sample is of that version
 */
export function isDue(startedAtStep: number, step: number, maxStaleness: number): boolean {
  return step - startedAtStep >= maxStaleness;
}
