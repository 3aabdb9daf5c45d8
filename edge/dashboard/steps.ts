import type { TrainStepView } from "#shared/wire.ts";

/**
 * Asks for a run's steps again and again: once for all of them, then for those that are new and for the last one again,
 * which gains metrics after it was written.
 * @returns a function that gives all of a run's steps; for another run it begins anew
 */
export function stepsFollower(
  list: (runId: string, since?: number) => Promise<readonly TrainStepView[]>,
): (runId: string) => Promise<readonly TrainStepView[]> {
  let known: { readonly runId: string; readonly steps: readonly TrainStepView[] } | undefined;
  return async (runId) => {
    const before = known?.runId === runId ? known.steps.slice(0, -1) : [];
    const last = known?.runId === runId ? known.steps.at(-1) : undefined;
    const steps = [...before, ...(await list(runId, last === undefined ? undefined : last.step - 1))];
    known = { runId, steps };
    return steps;
  };
}
