import { FulgurError } from "#shared/errors.ts";
import { servedName } from "#shared/words.ts";
import { NO_BASELINE } from "./advantage/lone-baseline.ts";
import { algorithmOf, runPaths, type TrainerConfig } from "./config.ts";
import type { Engine } from "./engine/contract.ts";
import type { LoopDeps } from "./loop.ts";
import type { PolicyRecord, RunRecord } from "./records.ts";
import { baseWeightsSha256 } from "./release/artifact.ts";
import { engineFolder, readNewestCheckpoint, saveCheckpoint, type LoopState } from "./release/checkpoint.ts";
import type { PublishDeps } from "./release/publish.ts";
import { weightsOf } from "./release/version-weights.ts";

/** One start of a run: where it stands, and what its steps are taken with. */
export interface RunStart {
  readonly paths: ReturnType<typeof runPaths>;
  /** As the store has the run. */
  readonly identity: {
    readonly id: string;
    readonly policy: string;
    readonly agent: string;
    readonly config: Record<string, string | number | boolean>;
  };
  readonly engine: Engine;
  /** The weights that the run began with, where the loss has a KL term. */
  readonly reference: Engine | undefined;
  readonly state: LoopState;
  readonly taskIds: readonly string[];
  /** Of this start: when it was, what the run had taken before it, and its steps' durations. */
  readonly startedAt: number;
  readonly secondsBefore: number;
  readonly stepMs: number[];
  readonly publishing: PublishDeps;
  /** Evaluations that an earlier start has made. */
  readonly kept: { readonly before: RunRecord["evalBefore"]; readonly after: RunRecord["evalAfter"] };
  /** Ends the engines. */
  close(): Promise<void>;
}

/** Finds out where the run stands: a new one begins with its first checkpoint, a known one is resumed. */
export async function startRun(deps: LoopDeps): Promise<RunStart> {
  const { config, records, openEngine, now } = deps;
  const startedAt = now();
  const policy = await records.policy(config.policy);
  if (policy === undefined) {
    throw new FulgurError(
      "ERR_UNKNOWN_POLICY",
      `the store has no policy ${config.policy} with a version 0; create it with POST /v1/policies`,
    );
  }
  const checkpoint = await readNewestCheckpoint(runPaths(config).checkpoints);
  if (checkpoint !== undefined) checkSameRun(config, checkpoint.state, checkpoint.folder);
  const base = checkpoint?.state.lineage.base ?? (config.from === "routed" ? policy.routeVersion : 0);
  const needsReference = algorithmOf(config).loss.klCoefficient > 0;
  const isNew = checkpoint === undefined;
  const origin = isNew || needsReference ? await weightsOf(policy, base, config) : undefined;
  // A checkpoint has all trained weights; what it takes beside them is the base model.
  const engine = await openEngine(isNew && origin !== undefined ? origin : { modelDir: policy.baseArtifact });
  const opened = [engine];
  const close = async (): Promise<void> => {
    for (const each of opened.toReversed()) await each.close();
  };
  try {
    const reference =
      needsReference && origin !== undefined ? await openEngine({ ...origin, isReference: true }) : undefined;
    if (reference !== undefined) opened.push(reference);
    return { ...(await begin(deps, { policy, base, engine, checkpoint })), reference, startedAt, close };
  } catch (error) {
    await close();
    throw error;
  }
}

interface Found {
  readonly policy: PolicyRecord;
  /** Version that the run begins with, or began. */
  readonly base: number;
  readonly engine: Engine;
  readonly checkpoint: Awaited<ReturnType<typeof readNewestCheckpoint>>;
}

async function begin(deps: LoopDeps, { policy, base, engine, checkpoint }: Found) {
  const { config, edge, records, steadyRecords, inference, emit } = deps;
  const paths = runPaths(config);
  const identity = { id: config.run, policy: config.policy, agent: config.agent, config: asJson(config) };
  await edge.putRun(identity);
  let state: LoopState;
  if (checkpoint === undefined) {
    const trained = await records.trainedSteps(config.run);
    if (trained > 0) {
      throw new FulgurError(
        "ERR_CHECKPOINT",
        `run ${config.run} has ${trained} trained steps in the store and no checkpoint in ${paths.checkpoints}; put the folder back, or begin another run`,
      );
    }
    state = newState(config, { base, made: [] });
  } else {
    state = checkpoint.state;
    await engine.load(engineFolder(checkpoint.folder));
  }
  if (state.step === 0) {
    const artifact = policy.versions.find(({ version }) => version === base)?.artifact ?? policy.baseArtifact;
    await inference.load(servedName(config.tenant, config.policy, base), artifact);
    // Another run of the policy may have left the route on its last version. After the first step publish.ts sees to it.
    if (policy.routeVersion !== base) await edge.routePolicy(config.policy, base);
  }
  if (checkpoint === undefined)
    await saveCheckpoint(paths.checkpoints, { engine, state, keep: config.keepCheckpoints });
  emit({
    event: "run",
    run_id: config.run,
    policy: config.policy,
    steps: config.steps,
    resumed_from_step: checkpoint === undefined ? null : state.step,
  });
  const artifact = { versions: paths.versions, baseSha256: await baseWeightsSha256(policy.baseArtifact) };
  const [taskIds, record] = await Promise.all([records.taskIds(config.agent, "train"), records.run(config.run)]);
  return {
    paths,
    identity,
    engine,
    state,
    taskIds,
    secondsBefore: state.sums.wallSeconds,
    stepMs: [],
    publishing: { tenant: config.tenant, engine, edge, records: steadyRecords, inference, artifact, now: deps.now },
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
  const memory = { rewards: [], baseline: NO_BASELINE, replay: [] };
  return { run, policy, method, seed, step: 0, lineage, lastBatch: null, sums, ...memory };
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
