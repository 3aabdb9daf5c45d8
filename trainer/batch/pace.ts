/**
 * Pacing: how many groups may be started now. Rollouts wait in line behind those that were started before them, so a
 * bound on the line is a bound on their age: with at most (K + 1)·B groups that no routed version has been trained on
 * yet (the batch being trained included), the last in line is trained K versions later at most, and nothing has to be
 * thrown away for its age. With K = 0 this is strictly on-policy.
 */
export interface Pace {
  /** K: versions that a sample may be behind. */
  readonly maxStaleness: number;
  /** B: groups in a batch. */
  readonly groups: number;
  /** Steps that have not been trained, the current one included. */
  readonly stepsLeft: number;
  /** Groups that were started and not yet claimed, trained on or dropped. */
  readonly waiting: number;
  /** Groups that the current batch holds. */
  readonly claimed: number;
}

/** Groups to start now, never negative. */
export function capacity({ maxStaleness, groups, stepsLeft, waiting, claimed }: Pace): number {
  // Near the end fewer are needed than the bound allows.
  const wanted = Math.min(maxStaleness + 1, stepsLeft) * groups;
  return Math.max(0, wanted - waiting - claimed);
}
