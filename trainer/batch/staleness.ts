/**
 * Staleness: how many of a run's versions lie between the one that sampled and the current one. Version numbers of a
 * run need not follow the base's (an earlier run may have taken them), so age is counted along the run's own line.
 */
export interface Lineage {
  /** Version that the run began with. */
  readonly base: number;
  /** Version of the run's first step; the following steps have the following numbers. */
  readonly first: number;
}

/** The version after so many steps of the run. */
export function versionAt({ base, first }: Lineage, step: number): number {
  return step === 0 ? base : first + step - 1;
}

/**
 * Steps between the version that sampled and the current one.
 * @param step steps trained so far
 * @returns Infinity for a version that is not of this run's line
 */
export function stalenessOf(lineage: Lineage, step: number, sampledBy: number): number {
  const { base, first } = lineage;
  const made = sampledBy === base ? 0 : sampledBy >= first ? sampledBy - first + 1 : -1;
  return made < 0 || made > step ? Infinity : step - made;
}

/**
 * Whether a group of rollouts must be waited for, or it would be too old for the batch after this one.
 * @param startedAtStep steps trained when the group was started: its oldest possible sample is of that version
 */
export function isDue(startedAtStep: number, step: number, maxStaleness: number): boolean {
  return step - startedAtStep >= maxStaleness;
}
