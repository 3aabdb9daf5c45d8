import { readdir } from "node:fs/promises";
import { versionAt } from "../batch/staleness.ts";
import { bestVersion } from "../step-metrics.ts";
import type { LoopState } from "./checkpoint.ts";
import { removeWholeFolders } from "./whole-folder.ts";

/**
 * Which of a run's folders stay on disk. What is removed is what nobody can ask for any more: a number that was taken
 * stays taken in the store, so that the name of a removed version never comes to mean another one.
 */

type Standing = Pick<LoopState, "step" | "lineage" | "rewards">;

export interface VersionRetention {
  readonly state: Standing;
  /** The newest versions of the run that are kept. */
  readonly keep: number;
  /** K: versions that a sample may be behind. */
  readonly maxStaleness: number;
}

/**
 * Removes the folders of versions that have outlived their use. Kept are the newest, the one whose rollouts earned most
 * (`--final best` may route it at the end), and all that are not this run's: its base, and what other runs came to. Before a
 * folder goes, its version is retired: a crash in between leaves a folder that nobody can ask for, and the next time
 * removes it. May be repeated.
 * @param versions folder that holds the policy's versions
 * @param retire says which of some versions nobody can ask for from now on; those in use stay
 */
export async function pruneVersions(
  versions: string,
  retention: VersionRetention,
  retire: (numbers: readonly number[]) => Promise<readonly number[]>,
): Promise<void> {
  const names = await readdir(versions);
  const candidates = outlived(names.filter(isNumber).map(Number), retention).toSorted((a, b) => a - b);
  const retired: number[] = [];
  for (let at = 0; at < candidates.length; at += RETIRED_AT_ONCE) {
    retired.push(...(await retire(candidates.slice(at, at + RETIRED_AT_ONCE))));
  }
  await removeWholeFolders(versions, candidates.filter((each) => retired.includes(each)).map(String));
}

/** Numbers in one question to the edge. */
const RETIRED_AT_ONCE = 1000;

/** Of these version numbers, those that are no longer needed. */
export function outlived(numbers: readonly number[], retention: VersionRetention): number[] {
  const { state, keep, maxStaleness } = retention;
  const { step, lineage, rewards } = state;
  // Samples of the last K + 1 versions are still to come, and a neighbour's count too: until then a version's mean moves,
  // and one that was passed over for it could turn out to be the best after all.
  const settled = versionAt(lineage, Math.max(0, step - maxStaleness - 2));
  const best = bestVersion(rewards, (version) => version <= settled);
  const old = new Set(lineage.made.slice(0, Math.max(0, step - Math.max(keep, maxStaleness + 2))));
  return numbers.filter((version) => old.has(version) && version !== best);
}

/**
 * Of these steps, in order, those whose checkpoints are kept: the newest ones, of which the last is what a claimed batch
 * is trained from, and of all that are still there the one whose version earned most so far.
 */
export function keptSteps(steps: readonly number[], state: Standing, keep: number): number[] {
  const published = steps.filter((step) => step <= state.lineage.made.length);
  const stepOf = new Map(published.map((step) => [versionAt(state.lineage, step), step]));
  const best = bestVersion(state.rewards, (version) => stepOf.has(version));
  const bestStep = best === undefined ? undefined : stepOf.get(best);
  return steps.filter((step, at) => at >= steps.length - keep || step === bestStep);
}

function isNumber(name: string): boolean {
  return /^\d{1,9}$/.test(name);
}
