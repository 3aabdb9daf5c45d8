import { FulgurError } from "#shared/errors.ts";
import type { EdgeClient } from "#shared/client.ts";
import type { Evaluation } from "#shared/run-events.ts";
import { versionName } from "#shared/words.ts";
import type { TrainerConfig } from "./config.ts";
import type { OutcomeRecord, Records } from "./records.ts";
import { meanEstimate, rateEstimate } from "./statistics.ts";

export interface EvaluateDeps {
  readonly config: TrainerConfig;
  readonly edge: Pick<EdgeClient, "createRollouts">;
  readonly records: Pick<Records, "taskIds" | "countStatuses" | "outcomes">;
  readonly pause: (ms: number) => Promise<void>;
  readonly now: () => number;
  readonly onProgress: (done: number, total: number) => void;
}

/**
 * Runs a version on held-out tasks, all at once: each task's rollout is pinned to the version, whatever is routed.
 * The same tasks before and after; the ids follow from run and phase, so that an evaluation that a crash cut short is
 * gone on with.
 * @throws FulgurError ERR_CONFIG without val tasks, ERR_TIMEOUT when no rollout ends for `wedgeMinutes`
 */
export async function evaluate(deps: EvaluateDeps, phase: "before" | "after", version: number): Promise<Evaluation> {
  const { config, edge, records, now } = deps;
  const startedAt = now();
  const tasks = await records.taskIds(config.agent, "val");
  if (tasks.length === 0) {
    throw new FulgurError(
      "ERR_CONFIG",
      `agent ${config.agent} has no val tasks in the store; create some, or give --eval-tasks 0`,
    );
  }
  const pin = versionName(config.policy, version);
  const rollouts = Array.from({ length: config.evalTasks }, (_, at) => ({
    id: `ro_${config.run}_${phase}_${String(at).padStart(6, "0")}`,
    // With fewer tasks than rollouts, tasks are run several times.
    taskId: tasks[at % tasks.length] ?? "",
    agent: config.agent,
    mode: "val" as const,
    runId: config.run,
    pin,
    maxAttempts: config.maxAttempts,
  }));
  for (let at = 0; at < rollouts.length; at += 1000) await edge.createRollouts(rollouts.slice(at, at + 1000));
  const ids = rollouts.map((rollout) => rollout.id);
  await waitForAll(deps, ids, `the evaluation ${phase} training`);
  return {
    version: pin,
    ...summarise(await records.outcomes(ids), config.watchFirstTool),
    wall_s: (now() - startedAt) / 1000,
  };
}

/** Means over the rollouts that finished; the others failed for reasons of infrastructure and are no zero rewards. */
export function summarise(
  outcomes: readonly OutcomeRecord[],
  watchFirstTool: string,
): Omit<Evaluation, "version" | "wall_s"> {
  const finished = outcomes.filter((each) => each.status === "finished" && each.reward !== null);
  const first = finished.filter((each) => each.outcome?.tools[0] === watchFirstTool).length;
  const correct = finished.filter((each) => (each.outcome?.correctness ?? 0) >= 1).length;
  return {
    reward: meanEstimate(finished.map((each) => each.reward ?? 0)),
    first_tool: rateEstimate(first, finished.length),
    correct: rateEstimate(correct, finished.length),
    n: finished.length,
    failed: outcomes.length - finished.length,
  };
}

async function waitForAll(deps: EvaluateDeps, ids: readonly string[], what: string): Promise<void> {
  const { config, records, now, onProgress, pause } = deps;
  let last = -1;
  let progressAt = now();
  for (;;) {
    const { queued = 0, running = 0 } = await records.countStatuses(ids);
    const done = ids.length - queued - running;
    if (done !== last) {
      last = done;
      progressAt = now();
      onProgress(done, ids.length);
    }
    if (done === ids.length) return;
    if (now() - progressAt > config.wedgeMinutes * 60_000) {
      throw new FulgurError(
        "ERR_TIMEOUT",
        `${what} has ended ${done} of ${ids.length} rollouts and none for ${config.wedgeMinutes} minutes; see the logs of the edge and of inference, then start again: the run resumes`,
      );
    }
    await pause(config.pollMs);
  }
}
