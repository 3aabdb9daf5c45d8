import { FulgurError } from "#shared/errors.ts";
import type { EdgeClient } from "#shared/client.ts";
import { evaluationSchema, type Evaluation, type RunEvent } from "#shared/run-events.ts";
import { versionName } from "#shared/words.ts";
import { gatherBatch, type Batch } from "./batch/claim.ts";
import { versionAt } from "./batch/staleness.ts";
import { algorithmOf, learningRateAt, runPaths, type TrainerConfig } from "./config.ts";
import type { Engine } from "./engine/contract.ts";
import { evaluate } from "./evaluate.ts";
import { learn, type LearnReport } from "./learn.ts";
import type { PolicyRecord, Records } from "./records.ts";
import { baseWeightsSha256, lastVersionOnDisk } from "./release/artifact.ts";
import { engineFolder, readNewestCheckpoint, saveCheckpoint, type LoopState } from "./release/checkpoint.ts";
import type { InferenceClient } from "./release/inference-client.ts";
import { publish, retireOldVersion } from "./release/publish.ts";
import { bestVersion, decodeTime, sampledRewards, stepMetrics } from "./step-metrics.ts";
import { summaryOf, writeJson } from "./summary.ts";

/** The world of a run; tests put their own in its place. */
export interface LoopDeps {
  readonly config: TrainerConfig;
  readonly edge: Pick<
    EdgeClient,
    "createRollouts" | "claimBatch" | "dropRollouts" | "markTrained" | "routePolicy" | "putRun"
  >;
  readonly records: Records;
  readonly inference: InferenceClient;
  /** Opens the base model for training; a second one serves as the frozen reference of a KL term. */
  readonly openEngine: (modelDir: string) => Promise<Engine>;
  readonly emit: (event: RunEvent) => void;
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
 *     resume from the newest checkpoint, or begin at the base
 *     evaluate the base on held-out tasks
 *     while steps are left:
 *         gather   rollouts → claimed batch, sifted into groups with a spread
 *         learn    credit → advantage → loss → engine
 *         save     checkpoint: from here on the update exists
 *         publish  artifact → batch trained → loaded → proven → routed
 *     evaluate the outcome on the same tasks
 *
 * Each line may be repeated after a crash anywhere; publish.ts has the reasons for the order. Rollouts for the next
 * batches run while the engine, in threads of its own, trains on this one: pace.ts bounds how far they run ahead.
 */
export async function trainRun(deps: LoopDeps): Promise<void> {
  const { config, signal, emit } = deps;
  const opened = await open(deps);
  try {
    const run = await begin(deps, opened);
    let { state } = run;
    const before = await evaluation(deps, run, { phase: "before", version: state.lineage.base });
    await publish(run.publishing, state);
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
      state = next;
    }
    await dropWaiting(deps);
    const version = await finalVersion(deps, state);
    const after = await evaluation(deps, run, { phase: "after", version });
    await finish(deps, run, { state: timed(state, run, deps.now()), before, after });
  } finally {
    await opened.reference?.close();
    await opened.engine.close();
  }
}

/** One step, from rollouts to the routed version; undefined when the rewards no longer vary. */
async function trainStep(deps: LoopDeps, run: RunStart, state: LoopState): Promise<LoopState | undefined> {
  const { config, emit, now } = deps;
  const startedAt = now();
  const batch = await gather(deps, run, state);
  if (batch === undefined) return undefined;
  const waitSeconds = (now() - startedAt) / 1000;
  const learningRate = learningRateAt(config, state.step);
  const { loss, advantage } = algorithmOf(config);
  const report = await learn(batch.groups, {
    engine: run.engine,
    reference: run.reference,
    loss,
    advantage,
    learningRate,
    maxGradNorm: config.maxGradNorm,
    updates: config.updatesPerBatch,
    now,
  });
  const metrics = stepMetrics(batch, {
    report,
    watchFirstTool: config.watchFirstTool,
    waitSeconds,
    stepSeconds: (now() - startedAt) / 1000,
    learningRate,
  });
  const next = timed(advance(state, { batch, report, metrics }), run, now());
  await saveCheckpoint(run.paths.checkpoints, { engine: run.engine, state: next, keep: config.keepCheckpoints });
  const savedAt = now();
  await publish(run.publishing, next);
  const publishMs = now() - savedAt;
  await retireOldVersion(deps.inference, next);

  run.stepMs.push(now() - startedAt);
  emit({
    event: "step",
    step: next.step,
    steps: config.steps,
    version: versionName(config.policy, versionAt(next.lineage, next.step)),
    metrics: { ...metrics, publish_ms: publishMs, seconds_step: (now() - startedAt) / 1000 },
    seconds_left: secondsLeft(run.stepMs, config.steps - next.step),
  });
  for (const message of alarms(metrics)) emit({ event: "warning", message });
  return next;
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

type RunStart = Awaited<ReturnType<typeof begin>>;

interface Opened {
  readonly policy: PolicyRecord;
  readonly engine: Engine;
  /** The frozen start, where the loss has a KL term. */
  readonly reference: Engine | undefined;
  readonly startedAt: number;
}

async function open({ config, records, openEngine, now }: LoopDeps): Promise<Opened> {
  const startedAt = now();
  const policy = await records.policy(config.policy);
  if (policy === undefined) {
    throw new FulgurError(
      "ERR_UNKNOWN_POLICY",
      `the store has no policy ${config.policy} with a version 0; create it with POST /v1/policies`,
    );
  }
  const engine = await openEngine(policy.baseArtifact);
  const reference = algorithmOf(config).loss.klCoefficient > 0 ? await openEngine(policy.baseArtifact) : undefined;
  return { policy, engine, reference, startedAt };
}

/** Finds out where the run stands: a new one begins at the base with its first checkpoint, a known one is resumed. */
async function begin(deps: LoopDeps, { policy, engine, reference, startedAt }: Opened) {
  const { config, edge, records, inference, emit } = deps;
  const paths = runPaths(config);
  const identity = { id: config.run, policy: config.policy, agent: config.agent, config: asJson(config) };
  await edge.putRun(identity);
  const checkpoint = await readNewestCheckpoint(paths.checkpoints);
  let state: LoopState;
  if (checkpoint === undefined) {
    const trained = await records.trainedSteps(config.run);
    if (trained > 0) {
      throw new FulgurError(
        "ERR_CHECKPOINT",
        `run ${config.run} has ${trained} trained steps in the store and no checkpoint in ${paths.checkpoints}; put the folder back, or begin another run`,
      );
    }
    // A number whose version was exported and never registered is taken too: a name is never reused.
    const last = Math.max(policy.lastVersion, await lastVersionOnDisk(paths.versions));
    state = newState(config, { base: 0, first: last + 1 });
    await inference.load(versionName(config.policy, 0), policy.baseArtifact);
    // An earlier run of the policy may have left the route on its last version. The checkpoint comes last: a run that
    // has one is not brought to the base again.
    if (policy.routeVersion !== 0) await edge.routePolicy(config.policy, 0);
    await saveCheckpoint(paths.checkpoints, { engine, state, keep: config.keepCheckpoints });
  } else {
    state = checkpoint.state;
    checkSameRun(config, state, checkpoint.folder);
    await engine.load(engineFolder(checkpoint.folder));
  }
  emit({
    event: "run",
    run_id: config.run,
    policy: config.policy,
    steps: config.steps,
    resumed_from_step: checkpoint === undefined ? null : state.step,
  });
  const artifact = { versions: paths.versions, baseSha256: await baseWeightsSha256(policy.baseArtifact) };
  const [train, record] = await Promise.all([records.taskIds(config.agent, "train"), records.run(config.run)]);
  return {
    paths,
    identity,
    engine,
    reference,
    state,
    taskIds: train,
    /** Of this start: when it was, what the run had taken before it, and its steps' durations. */
    startedAt,
    secondsBefore: state.sums.wallSeconds,
    stepMs: [] as number[],
    publishing: { engine, edge, inference, artifact, now: deps.now },
    kept: { before: record?.evalBefore, after: record?.evalAfter },
  };
}

/** Fields that were not given have no place in JSON. */
function asJson(config: TrainerConfig): Record<string, string | number | boolean> {
  return Object.fromEntries(
    Object.entries(config).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
  );
}

function newState(config: TrainerConfig, lineage: LoopState["lineage"]): LoopState {
  const { run, policy, method, seed } = config;
  const sums = {
    wallSeconds: 0,
    stepSeconds: 0,
    trainedTokens: 0,
    trainSeconds: 0,
    decodedTokens: 0,
    decodeSeconds: 0,
  };
  return { run, policy, method, seed, step: 0, lineage, lastBatch: null, sums, rewards: [] };
}

/** A run is its seed and method too: with others it would be resumed as something that never was. */
function checkSameRun(config: TrainerConfig, state: LoopState, folder: string): void {
  for (const field of ["run", "policy", "method", "seed"] as const) {
    if (state[field] === config[field]) continue;
    throw new FulgurError(
      "ERR_CHECKPOINT",
      `${folder} belongs to a run with ${field} ${state[field]}, and ${config[field]} was asked for; leave that as it was, or begin another run`,
    );
  }
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
        deps.emit({ event: "progress", step: state.step + 1, doing: "rollouts", done, total });
      },
    },
    { step: state.step, lineage: state.lineage },
  );
}

/** The state after a step: what the next one, or a trainer that starts again, goes on from. */
function advance(
  state: LoopState,
  update: {
    readonly batch: Batch;
    readonly report: LearnReport;
    readonly metrics: Readonly<Record<string, number>>;
  },
): LoopState {
  const { batch, report, metrics } = update;
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
    rewards: sampledRewards(state.rewards, batch.claimed),
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
  await inference.prove(versionName(config.policy, best));
  await edge.routePolicy(config.policy, best);
  return best;
}

/** By the mean of the last few steps: the first are slower than those that follow. */
function secondsLeft(stepMs: readonly number[], stepsLeft: number): number {
  const last = stepMs.slice(-8);
  return Math.round(((last.reduce((sum, ms) => sum + ms, 0) / Math.max(1, last.length)) * stepsLeft) / 1000);
}

/** Values that should worry, as docs/METRICS.md names them. */
function alarms(metrics: Readonly<Record<string, number>>): string[] {
  const { kl_behaviour: kl = 0, staleness_mean: staleness = 0, ess = 1, importance_weight_mean: weight = 1 } = metrics;
  const found: string[] = [];
  // Only fresh samples say that training and inference compute different probabilities; stale ones differ by right.
  if (staleness === 0 && kl > 1e-3) {
    found.push(
      `kl_behaviour is ${kl.toExponential(1)} on fresh samples: training and inference disagree about the same weights`,
    );
  }
  if (ess < 0.3)
    found.push(`ess is ${ess.toFixed(2)}: few samples carry the batch; lower --max-staleness or --learning-rate`);
  if (weight < 0.5 || weight > 2) {
    found.push(`importance_weight_mean is ${weight.toFixed(2)}, which should be near 1; lower --max-staleness`);
  }
  return found;
}
