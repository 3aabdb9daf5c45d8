import type { EdgeClient } from "#shared/client.ts";
import type { InferenceClient } from "#shared/inference-client.ts";
import { evaluationSchema, type Evaluation, type RunEvent } from "#shared/run-events.ts";
import { servedName, versionName } from "#shared/words.ts";
import { gatherBatch, type Batch } from "./batch/claim.ts";
import { chooseReplay, recall, remember, replayMetrics, type ReplayState } from "./batch/replay.ts";
import { versionAt } from "./batch/staleness.ts";
import {
  algorithmOf,
  learningRateAt,
  stalenessBound,
  trainedCalls,
  type EngineStart,
  type TrainerConfig,
} from "./config.ts";
import type { Engine } from "./engine/contract.ts";
import { evaluate } from "./evaluate.ts";
import { learn, type LearnReport } from "./learn.ts";
import type { Alarm } from "./metrics/alarms.ts";
import { meteredEngine, meteredInference, meteredReference } from "./metrics/metered.ts";
import type { RunMetrics } from "./metrics/run-metrics.ts";
import { StepMeter } from "./metrics/step-meter.ts";
import type { Records } from "./records.ts";
import { saveCheckpoint, type LoopState } from "./release/checkpoint.ts";
import { publish, retireOldVersion } from "./release/publish.ts";
import { pruneVersions } from "./release/retention.ts";
import { startRun, type RunStart } from "./run-start.ts";
import { bestVersion, decodeTime, phaseSeconds, sampledRewards, stepMetrics } from "./step-metrics.ts";
import { summaryOf, writeJson } from "./summary.ts";

/** The world of a run; tests put their own in its place. */
export interface LoopDeps {
  readonly config: TrainerConfig;
  readonly edge: Pick<
    EdgeClient,
    "createRollouts" | "claimBatch" | "dropRollouts" | "markTrained" | "routePolicy" | "retireVersions" | "putRun"
  >;
  readonly records: Records;
  /** The same, for a step that has its batch: a stop does not cut these short, or the step would be taken again. */
  readonly steadyRecords: Pick<Records, "batch" | "fates" | "lastVersion">;
  readonly inference: InferenceClient;
  /** Opens a model for training; a second one serves as the frozen reference of a KL term. */
  readonly openEngine: (start: EngineStart) => Promise<Engine>;
  readonly emit: (event: RunEvent) => void;
  readonly metrics: RunMetrics;
  /** Milliseconds on a clock that only goes forward. */
  readonly now: () => number;
  /** @throws the signal's reason once it is aborted */
  readonly pause: (ms: number) => Promise<void>;
  /** Aborted when the run is to end early: a step under way is finished and published, waiting ends at once. */
  readonly signal: AbortSignal;
}

/**
 * A whole run:
 *
 *     resume from the newest checkpoint, or begin at the base (run-start.ts)
 *     evaluate the base on held-out tasks
 *     while steps are left:
 *         gather   rollouts, or live traffic → claimed batch, sifted into groups with a spread
 *         learn    credit → advantage → loss → engine
 *         save     checkpoint: from here on the update exists
 *         publish  artifact → batch trained → loaded → proven → routed
 *     evaluate the outcome on the same tasks
 *
 * Each line may be repeated after a crash anywhere; publish.ts has the reasons for the order. Rollouts for the next
 * batches run while the engine, in threads of its own, trains on this one: pace.ts bounds how far they run ahead.
 * @returns `paused` where an alarm has ended it, which is as if it had been killed after its checkpoint
 */
export async function trainRun(deps: LoopDeps): Promise<"finished" | "paused"> {
  const { config, signal, emit } = deps;
  const run = await startRun(deps);
  try {
    let { state } = run;
    const position = { step: state.step, last: state.lastBatch?.metrics ?? null, tasks: run.taskIds.length };
    if (isPausedBy(await deps.metrics.open(position), deps, state)) return "paused";
    const before = await evaluation(deps, run, { phase: "before", version: state.lineage.base });
    state = await publish(run.publishing, state);
    while (state.step < config.steps) {
      signal.throwIfAborted();
      const next = await trainStep(deps, run, state);
      if (next === undefined) {
        emit({
          event: "warning",
          message: `training ends after ${state.step} of ${config.steps} steps: the rewards of every group are equal, so there is nothing to learn from`,
        });
        break;
      }
      if (next.isPaused) return "paused";
      state = next.state;
    }
    await dropWaiting(deps);
    const version = await finalVersion(deps, state);
    const after = await evaluation(deps, run, { phase: "after", version });
    await finish(deps, run, { state: timed(state, run, deps.now()), before, after });
    return "finished";
  } finally {
    await deps.metrics.close();
    await run.close();
  }
}

/** One step, from rollouts to the routed version; undefined when the rewards no longer vary. */
async function trainStep(
  deps: LoopDeps,
  run: RunStart,
  state: LoopState,
): Promise<{ readonly state: LoopState; readonly isPaused: boolean } | undefined> {
  const { config, emit, now } = deps;
  const startedAt = now();
  const meter = new StepMeter(now);
  const batch = await meter.time("wait", () => gather(deps, run, state));
  if (batch === undefined) return undefined;
  const learningRate = learningRateAt(config, state.step);
  const { loss, advantage } = algorithmOf(config);
  const chosen = chooseReplay(state.replay, state.step, config.replay);
  const replayed = await recall(chosen, deps.records, { ...state, ...trainedCalls(config) });
  const learning = learn([...batch.groups, ...replayed], {
    engine: meteredEngine(run.engine, meter),
    reference: run.reference === undefined ? undefined : meteredReference(run.reference, meter),
    loss,
    advantage,
    learningRate,
    maxGradNorm: config.maxGradNorm,
    updates: config.updatesPerBatch,
    fullness: Math.min(1, batch.groups.length / config.groups),
    isServedExactly: config.servePrecision === "fp32",
    now,
  });
  const [report, fates] = await Promise.all([learning, deps.steadyRecords.fates(config.run, batch.batchId)]);
  const own = stepMetrics(batch, {
    report,
    watchFirstTool: config.watchFirstTool,
    measured: meter,
    stepSeconds: (now() - startedAt) / 1000,
    learningRate,
    hasReference: run.reference !== undefined,
    fates,
    peakTflops: config.peakTflops,
  });
  const metrics = config.replay === 0 ? own : { ...own, ...replayMetrics(replayed) };
  const replay = remember(state.replay, { ...batch, replayed: chosen }, { step: state.step, count: config.replay });
  const trained = timed(advance(state, { batch, report, metrics, replay }), run, now());
  const { engine, paths } = run;
  await meter.time("checkpoint", () =>
    saveCheckpoint(paths.checkpoints, { engine, state: trained, keep: config.keepCheckpoints }),
  );
  if (isPausedBy(deps.metrics.observe(metrics), deps, trained)) {
    await deps.metrics.write(trained.step, metrics);
    return { state: trained, isPaused: true };
  }
  const publishing = { ...run.publishing, inference: meteredInference(deps.inference, meter) };
  const next = await meter.time("publish", () => publish(publishing, trained));
  await retireOldVersion({ ...config, inference: deps.inference }, next);

  run.stepMs.push(now() - startedAt);
  const whole = { ...metrics, ...phaseSeconds(meter), seconds_step: (now() - startedAt) / 1000 };
  emit({
    event: "step",
    step: next.step,
    steps: config.steps,
    version: versionName(config.policy, versionAt(next.lineage, next.step)),
    metrics: whole,
    seconds_left: secondsLeft(run.stepMs, config.steps - next.step),
  });
  await deps.metrics.write(next.step, whole);
  await pruneVersions(
    run.paths.versions,
    { state: next, keep: config.keepVersions, maxStaleness: stalenessBound(config) },
    (versions) => deps.edge.retireVersions(config.policy, versions),
  );
  return { state: next, isPaused: false };
}

/**
 * Warns of the alarms of a step. Where they pause the run, the step is kept and not published: the version before is the
 * last one that nothing was wrong with.
 */
function isPausedBy(alarms: readonly Alarm[], { config, emit }: LoopDeps, { step, lineage }: LoopState): boolean {
  for (const { name, message } of alarms) emit({ event: "warning", message: `${name}: ${message}` });
  if (!config.pauseOnAlarm || alarms.length === 0) return false;
  const version = versionName(config.policy, versionAt(lineage, step - 1));
  const names = alarms.map(({ name }) => name).join(", ");
  emit({
    event: "paused",
    step,
    version,
    message: `paused after step ${step} by ${names}; ${version} goes on serving, and the step is kept; the same command goes on with the run, --new --from routed begins another at ${version}`,
  });
  return true;
}

async function finish(
  deps: LoopDeps,
  run: RunStart,
  found: { readonly state: LoopState; readonly before: Evaluation | null; readonly after: Evaluation | null },
): Promise<void> {
  const { config, edge, records, emit } = deps;
  await edge.putRun({ ...run.identity, finishedAt: Date.now() });
  const totals = await records.totals(config.run);
  const { watchFirstTool, agent: task } = config;
  await writeJson(run.paths.summary, summaryOf({ task, watchFirstTool, totals, ...found }));
  emit({ event: "done", summary_path: run.paths.summary });
}

async function gather(deps: LoopDeps, run: RunStart, state: LoopState): Promise<Batch | undefined> {
  let quietUntil = deps.now() + 2000;
  return gatherBatch(
    {
      ...deps,
      taskIds: run.taskIds,
      onWaiting: (done, total) => {
        if (deps.now() < quietUntil) return;
        quietUntil = deps.now() + 1000;
        const doing = deps.config.live ? "live rollouts with a reward" : "rollouts";
        deps.emit({ event: "progress", step: state.step + 1, doing, done, total });
      },
      warn: (message) => deps.emit({ event: "warning", message }),
    },
    state,
  );
}

/** The state after a step: what the next one, or a trainer that starts again, goes on from. */
function advance(
  state: LoopState,
  update: {
    readonly batch: Batch;
    readonly report: LearnReport;
    readonly metrics: Readonly<Record<string, number>>;
    readonly replay: ReplayState;
  },
): LoopState {
  const { batch, report, metrics, replay } = update;
  const decode = decodeTime(batch.claimed);
  const { sums } = state;
  return {
    ...state,
    step: state.step + 1,
    lastBatch: { id: batch.batchId, metrics },
    sums: {
      wallSeconds: sums.wallSeconds,
      stepSeconds: sums.stepSeconds + (metrics["seconds_step"] ?? 0),
      trainedTokens: sums.trainedTokens + report.tokens,
      trainSeconds: sums.trainSeconds + report.seconds,
      decodedTokens: sums.decodedTokens + decode.tokens,
      decodeSeconds: sums.decodeSeconds + decode.seconds,
    },
    rewards: sampledRewards(state.rewards, batch.claimed, state.lineage),
    baseline: batch.baseline,
    replay,
  };
}

/** The state with the time that the run has taken, all its starts together. */
function timed(state: LoopState, run: RunStart, now: number): LoopState {
  return { ...state, sums: { ...state.sums, wallSeconds: run.secondsBefore + (now - run.startedAt) / 1000 } };
}

/** An evaluation, once: its result is kept with the run, and a run that is started again does not repeat it. */
async function evaluation(
  deps: LoopDeps,
  run: RunStart,
  { phase, version }: { readonly phase: "before" | "after"; readonly version: number },
): Promise<Evaluation | null> {
  const { config, edge, emit } = deps;
  if (config.evalTasks === 0) return null;
  const kept = evaluationSchema.safeParse(run.kept[phase]);
  if (kept.success) {
    emit({ event: "evaluation", phase, result: kept.data });
    return kept.data;
  }
  const onProgress = (done: number, total: number): void => emit({ event: "evaluating", phase, done, total });
  const result = await evaluate({ ...deps, onProgress }, phase, version);
  await edge.putRun({ ...run.identity, [phase === "before" ? "evalBefore" : "evalAfter"]: result });
  emit({ event: "evaluation", phase, result });
  return result;
}

/** Rollouts that were started and that no step will train on. */
async function dropWaiting({ config, records, edge }: LoopDeps): Promise<void> {
  const ids = (await records.waitingGroups(config.run)).flatMap((group) => group.rolloutIds);
  for (let at = 0; at < ids.length; at += 1000) await edge.dropRollouts(ids.slice(at, at + 1000), "run_ended");
}

async function finalVersion({ config, edge, inference }: LoopDeps, state: LoopState): Promise<number> {
  const last = versionAt(state.lineage, state.step);
  const best = config.final === "best" ? bestVersion(state.rewards) : undefined;
  if (best === undefined || best === last) return last;
  await inference.prove(servedName(config.tenant, config.policy, best));
  await edge.routePolicy(config.policy, best);
  return best;
}

/** By the mean of the last few steps: the first are slower than those that follow. */
function secondsLeft(stepMs: readonly number[], stepsLeft: number): number {
  const last = stepMs.slice(-8);
  return Math.round(((last.reduce((sum, ms) => sum + ms, 0) / Math.max(1, last.length)) * stepsLeft) / 1000);
}
