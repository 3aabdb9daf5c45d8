import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import type { RunEvent } from "#shared/run-events.ts";
import type { DropReason, RolloutStatus } from "#shared/words.ts";
import { runPaths, trainerConfigSchema, type TrainerConfig } from "../../../trainer/config.ts";
import type { Engine, TokenScores, Sample } from "../../../trainer/engine/contract.ts";
import type { LoopDeps } from "../../../trainer/loop.ts";
import { MetricsJournal } from "../../../trainer/metrics/jsonl.ts";
import { RunMetrics } from "../../../trainer/metrics/run-metrics.ts";
import type { Records, RolloutRecord } from "../../../trainer/records.ts";

/**
 * Edge, store and inference of a trainer in memory, for faults: what the trainer asked for outlives it, and the n-th
 * thing it asks for can fail, before or after it took effect. The policy is one number, the chance of the good action.
 */

interface WorldRollout {
  readonly id: string;
  readonly runId: string | null;
  groupId: string | null;
  readonly mode: "train" | "val" | "live";
  readonly pin: string | null;
  readonly at: number;
  status: RolloutStatus;
  reward: number | null;
  version: number | null;
  disposition: "trained" | "dropped" | null;
  dropReason: DropReason | null;
  batch: string | null;
}

interface WorldBatch {
  readonly id: string;
  readonly runId: string;
  readonly step: number;
  status: "claimed" | "trained";
  version: number | null;
}

export class World {
  readonly rollouts = new Map<string, WorldRollout>();
  readonly batches = new Map<string, WorldBatch>();
  /** Version → sha256 of its manifest. */
  readonly versions = new Map<number, { sha256: string; parent: number | null }>([
    [0, { sha256: "base", parent: null }],
  ]);
  readonly retired = new Set<number>();
  readonly loaded = new Set<string>();
  readonly run: { evalBefore: unknown; evalAfter: unknown; finishedAt: number | null } = {
    evalBefore: null,
    evalAfter: null,
    finishedAt: null,
  };
  readonly events: RunEvent[] = [];
  routeVersion = 0;
  /** Names of all things asked for, in order. */
  readonly asked: string[] = [];
  /** Fails when so many more things have been asked for; negative: never. */
  fuse = -1;
  failAfterEffect = false;
  /** Reward of a rollout of a task at a version. */
  rewardOf: (rollout: WorldRollout) => number | null = (rollout) => (rollout.at % 2 === 0 ? 1 : 0);
  statusOf: (rollout: WorldRollout) => RolloutStatus = () => "finished";
  /** Whether the endpoint gives log-probabilities with what it samples. */
  givesLogprobs = true;
  readonly #dir: string;
  #created = 0;

  constructor(dir: string) {
    this.#dir = dir;
  }

  async prepare(): Promise<this> {
    await mkdir(this.baseArtifact, { recursive: true });
    await writeFile(join(this.baseArtifact, "manifest.json"), `{"name":"toy@0","sha256":{}}`);
    return this;
  }

  get baseArtifact(): string {
    return join(this.#dir, "policies", "toy", "0");
  }

  config(given: Partial<TrainerConfig> = {}): TrainerConfig {
    return trainerConfigSchema.parse({
      run: "r1",
      agent: "toy",
      policy: "toy",
      stateDir: this.#dir,
      steps: 3,
      groups: 2,
      groupSize: 2,
      evalTasks: 4,
      refillGroups: 0,
      pollMs: 10,
      ...given,
    });
  }

  /** Dependencies of one start of the trainer. */
  deps(config: TrainerConfig, signal: AbortSignal = new AbortController().signal): LoopDeps {
    const clock = { ms: 0 };
    return {
      config,
      edge: this.#guarded("edge", this.#edge()),
      records: this.#guarded("records", this.#records()),
      steadyRecords: this.#guarded("records", this.#records()),
      inference: this.#guarded("inference", {
        load: async (name: string, folder: string) => {
          await readFile(join(folder, "manifest.json"));
          this.loaded.add(name);
        },
        unload: async (name: string) => void this.loaded.delete(name),
        prove: async (name: string) => {
          if (!this.loaded.has(name)) throw new FulgurError("ERR_CHECKPOINT", `${name} does not answer`);
        },
      }),
      openEngine: async ({ adapterDir }) => this.#guarded("engine", await toyEngine(() => this.work(), adapterDir)),
      emit: (event) => void this.events.push(event),
      metrics: new RunMetrics({
        journal: new MetricsJournal(runPaths(config).metrics),
        sinks: [],
        warn: (message) => void this.events.push({ event: "warning", message }),
        clock: () => clock.ms,
      }),
      now: () => (clock.ms += 1),
      pause: async (ms) => {
        signal.throwIfAborted();
        clock.ms += ms;
        this.work();
        await Promise.resolve();
      },
      signal,
    };
  }

  /** Rollouts under way end. */
  work(): void {
    for (const rollout of this.rollouts.values()) {
      if (rollout.status !== "queued" || this.statusOf(rollout) === "queued") continue;
      rollout.version = rollout.pin === null ? this.routeVersion : Number(rollout.pin.split("@")[1]);
      rollout.status = this.statusOf(rollout);
      if (rollout.status === "finished") rollout.reward = this.rewardOf(rollout);
      else {
        rollout.disposition = "dropped";
        rollout.dropReason = "agent_failed";
      }
    }
  }

  /** A user's session of the agent that has ended, answered by the routed version, with what feedback gave it. */
  visit(reward: number | null): string {
    const id = `live_${String(this.#created).padStart(4, "0")}`;
    this.rollouts.set(id, {
      ...newRollout(id, { runId: null, groupId: null, mode: "live", pin: null, at: this.#created }),
      status: "finished",
      version: this.routeVersion,
      reward,
    });
    this.#created += 1;
    return id;
  }

  /** Each function counts against the fuse when it is called. */
  #guarded<T extends object>(part: string, target: T): T {
    return new Proxy(target, {
      get: (object, name, receiver) => {
        const value: unknown = Reflect.get(object, name, receiver);
        if (typeof value !== "function") return value;
        return async (...args: readonly unknown[]) => {
          this.asked.push(`${part}.${String(name)}`);
          const fails = this.fuse === 0;
          this.fuse -= 1;
          if (fails && !this.failAfterEffect) throw new Killed();
          const result: unknown = await Reflect.apply(value, object, args);
          if (fails) throw new Killed();
          return result;
        };
      },
    });
  }

  #edge(): LoopDeps["edge"] {
    return {
      createRollouts: async (rollouts) => {
        for (const { id, runId = null, groupId = null, mode, pin = null } of rollouts) {
          if (mode === "live" || this.rollouts.has(id)) continue;
          this.rollouts.set(id, newRollout(id, { runId, groupId, mode, pin, at: this.#created }));
          this.#created += 1;
        }
        return { ids: rollouts.map((rollout) => rollout.id) };
      },
      claimBatch: async ({ batchId, runId, step, groups, live }) => {
        for (const batch of this.batches.values()) {
          if (batch.runId === runId && batch.step === step && batch.id !== batchId)
            throw new FulgurError("ERR_CONFLICT", "step taken");
        }
        const batch = this.batches.get(batchId) ?? { id: batchId, runId, step, status: "claimed", version: null };
        if (batch.status !== "claimed") throw new FulgurError("ERR_CONFLICT", "batch is over");
        this.batches.set(batchId, batch);
        if (live !== undefined) {
          const free = this.#freeLive(live.versions);
          const whole = Math.min(groups, Math.floor(free.length / live.groupSize)) * live.groupSize;
          for (const [at, each] of free.slice(0, whole).entries()) {
            each.batch = batchId;
            each.groupId = `gr_live_${free[at - (at % live.groupSize)]?.id ?? ""}`;
          }
          return { batchId, rolloutIds: this.#of(batchId).map((each) => each.id) };
        }
        const complete = this.#free(runId).filter(([, members]) => members.every((each) => each.status === "finished"));
        for (const [, members] of complete.slice(0, groups)) for (const each of members) each.batch = batchId;
        return { batchId, rolloutIds: this.#of(batchId).map((each) => each.id) };
      },
      dropRollouts: async (ids, reason) => {
        for (const id of ids) {
          const rollout = this.rollouts.get(id);
          if (rollout === undefined || rollout.disposition !== null) continue;
          rollout.disposition = "dropped";
          rollout.dropReason = reason;
          if (rollout.status === "queued") rollout.status = "cancelled";
        }
        return { dropped: ids.length };
      },
      markTrained: async (batchId, { version, parentVersion, sha256 }) => {
        const batch = this.batches.get(batchId);
        if (batch === undefined) throw new FulgurError("ERR_NOT_FOUND", "no such batch");
        const known = this.versions.get(version);
        if (known !== undefined && known.sha256 !== sha256) throw new FulgurError("ERR_CONFLICT", "version taken");
        if (batch.status === "trained" && batch.version !== version)
          throw new FulgurError("ERR_CONFLICT", "trained already");
        this.versions.set(version, { sha256, parent: parentVersion });
        for (const each of this.#of(batchId)) each.disposition = "trained";
        batch.status = "trained";
        batch.version = version;
        return {};
      },
      routePolicy: async (_, version) => {
        if (!this.versions.has(version)) throw new FulgurError("ERR_NOT_FOUND", "no such version");
        if (this.retired.has(version)) throw new FulgurError("ERR_CONFLICT", "retired");
        this.routeVersion = version;
        return {};
      },
      retireVersions: async (_, versions) => {
        for (const version of versions) if (version !== this.routeVersion) this.retired.add(version);
        return versions.filter((version) => this.retired.has(version));
      },
      putRun: async ({ evalBefore, evalAfter, finishedAt }) => {
        if (evalBefore !== undefined) this.run.evalBefore = evalBefore;
        if (evalAfter !== undefined) this.run.evalAfter = evalAfter;
        if (finishedAt !== undefined) this.run.finishedAt = finishedAt;
        return {};
      },
    };
  }

  #records(): Records {
    return {
      policy: async () => ({
        routeVersion: this.routeVersion,
        baseArtifact: this.baseArtifact,
        versions: [...this.versions].map(([version, { sha256 }]) => ({
          version,
          kind: version === 0 ? ("base" as const) : ("adapter" as const),
          artifact: join(this.#dir, "policies", "toy", String(version)),
          sha256,
        })),
      }),
      lastVersion: async () => Math.max(...this.versions.keys()),
      run: async () => this.run,
      taskIds: async (_, split) => Array.from({ length: 5 }, (_, at) => `toy-${split}-${at}`),
      batch: async (id) => this.batches.get(id),
      trainedSteps: async (runId) =>
        [...this.batches.values()].filter((batch) => batch.runId === runId && batch.status === "trained").length,
      waitingGroups: async (runId) =>
        this.#free(runId).map(([groupId, members]) => ({
          groupId,
          rolloutIds: members.map((each) => each.id),
          open: members.filter((each) => each.status === "queued").map((each) => each.id),
          finished: members.filter((each) => each.status === "finished").length,
        })),
      countLive: async ({ versions }) => this.#freeLive(versions).length,
      lastGroupId: async (runId) =>
        [...this.rollouts.values()]
          .flatMap((each) =>
            each.runId !== runId || each.groupId === null || each.mode === "live" ? [] : [each.groupId],
          )
          .toSorted()
          .at(-1),
      batchRollouts: async (batchId) => this.#of(batchId).map((rollout) => recordOf(rollout, this.givesLogprobs)),
      flatRollouts: async (batchId) =>
        [...this.rollouts.values()]
          .filter((each) => each.batch === batchId && each.dropReason === "zero_spread")
          .map((rollout) => recordOf(rollout, this.givesLogprobs)),
      countStatuses: async (ids) => {
        const counts: Partial<Record<RolloutStatus, number>> = {};
        for (const id of ids) {
          const status = this.rollouts.get(id)?.status;
          if (status !== undefined) counts[status] = (counts[status] ?? 0) + 1;
        }
        return counts;
      },
      outcomes: async (ids) =>
        ids.flatMap((id) => {
          const rollout = this.rollouts.get(id);
          return rollout === undefined ? [] : [recordOf(rollout, this.givesLogprobs)];
        }),
      fates: async (_, batchId) => {
        const all = [...this.rollouts.values()];
        return {
          batchDropped: countReasons(all.filter((each) => each.batch === batchId)),
          runFailed: countReasons(all.filter((each) => each.mode === "train" && each.status !== "finished")),
          open: all.filter((each) => each.disposition === null).length,
        };
      },
      totals: async () => ({ rollouts: this.rollouts.size, calls: this.rollouts.size, dropped: {} }),
    };
  }

  #free(runId: string): [string, WorldRollout[]][] {
    const free = [...this.rollouts.values()].filter(
      (each) =>
        each.runId === runId &&
        each.mode !== "live" &&
        each.groupId !== null &&
        each.disposition === null &&
        each.batch === null,
    );
    return [...Map.groupBy(free, (each) => each.groupId ?? "")];
  }

  #freeLive(versions: readonly number[]): WorldRollout[] {
    return [...this.rollouts.values()].filter(
      ({ mode, reward, disposition, batch, version }) =>
        mode === "live" &&
        reward !== null &&
        disposition === null &&
        batch === null &&
        versions.includes(version ?? -1),
    );
  }

  #of(batchId: string): WorldRollout[] {
    return [...this.rollouts.values()].filter((each) => each.batch === batchId && each.disposition !== "dropped");
  }
}

function newRollout(id: string, given: Pick<WorldRollout, "runId" | "groupId" | "mode" | "pin" | "at">): WorldRollout {
  return {
    id,
    ...given,
    status: "queued",
    reward: null,
    version: null,
    disposition: null,
    dropReason: null,
    batch: null,
  };
}

function countReasons(rollouts: readonly WorldRollout[]): Partial<Record<DropReason, number>> {
  const counts: Partial<Record<DropReason, number>> = {};
  for (const { dropReason } of rollouts) if (dropReason !== null) counts[dropReason] = (counts[dropReason] ?? 0) + 1;
  return counts;
}

/** What stands for the death of the process. */
export class Killed extends Error {}

/** One call per rollout: prompt [1, 2], response [3] or [4] by the reward. */
function recordOf(rollout: WorldRollout, withLogprobs: boolean): RolloutRecord {
  const { id, groupId, status, reward, version } = rollout;
  return {
    id,
    groupId: groupId ?? "",
    taskId: "toy",
    status,
    reward,
    outcome: { status: 1, terminal: reward ?? 0, correctness: reward ?? 0, format: 1, tools: ["memory"] },
    intermediate: [],
    calls: [
      {
        callId: `ca_${id}`,
        role: "main",
        promptTokenIds: Int32Array.of(1, 2),
        responseTokenIds: Int32Array.of(reward === 1 ? 3 : 4),
        behaviourLogprobs: withLogprobs ? Float32Array.of(Math.log(0.5)) : null,
        policyVersion: version,
        trainable: true,
        toolCallIds: [],
        finishReason: "stop",
        startedAt: 0,
        latencyMs: 1,
      },
    ],
  };
}

/** An engine of one weight: the log-odds of token 3 against 4. It knows how many steps it has taken; rollouts go on meanwhile. */
async function toyEngine(onStep: () => void, adapterDir: string | undefined): Promise<Engine> {
  let { weight, steps } = adapterDir === undefined ? { weight: 0, steps: 0 } : await readToy(join(adapterDir, ADAPTER));
  let gradient = 0;
  const scoresOf = (sample: Sample): TokenScores => {
    const chance = 1 / (1 + Math.exp(-weight));
    return {
      logprobs: Float32Array.from(sample.tokens, (token, t) =>
        sample.lossMask[t] === 1 ? Math.log(token === 3 ? chance : 1 - chance) : 0,
      ),
      entropy: Float32Array.from(sample.tokens, () => 0.5),
    };
  };
  const engine = {
    info: {
      name: "toy",
      precision: "fp32",
      method: "lora",
      parameters: { total: 1, trained: 1 },
      architecture: { layers: 1, width: 1, heads: 1, kvHeads: 1, headSize: 1, feedForward: 1, vocab: 5 },
    },
    score: async (samples: readonly Sample[]) => samples.map(scoresOf),
    backward: async (samples: readonly Sample[], cotangents: readonly { readonly dLogprobs: Float32Array }[]) => {
      const chance = 1 / (1 + Math.exp(-weight));
      for (const [at, { tokens, lossMask }] of samples.entries()) {
        tokens.forEach((token, t) => {
          const pull = lossMask[t] === 1 ? (cotangents[at]?.dLogprobs[t] ?? 0) : 0;
          gradient += pull * (token === 3 ? 1 - chance : -chance);
        });
      }
      return samples.map(scoresOf);
    },
    step: async ({ learningRate }: { readonly learningRate: number }) => {
      onStep();
      weight -= learningRate * gradient;
      const gradNorm = Math.abs(gradient);
      gradient = 0;
      steps += 1;
      return { gradNorm };
    },
    save: async (dir: string) => {
      await mkdir(dir, { recursive: true });
      await writeFile(join(dir, "weight.json"), JSON.stringify({ weight, steps }));
    },
    load: async (dir: string) => {
      ({ weight, steps } = await readToy(join(dir, "weight.json")));
    },
    exportAdapter: async (dir: string) => {
      await mkdir(dir, { recursive: true });
      await writeFile(join(dir, ADAPTER), JSON.stringify({ weight, steps }));
      await writeFile(join(dir, "adapter_config.json"), JSON.stringify({ r: 16, lora_alpha: 32 }));
    },
    exportWeights: async () => {
      throw new Error("not a full model");
    },
    close: async () => undefined,
  };
  // Of its architecture the toy has what operations are counted by.
  return engine as unknown as Engine;
}

const ADAPTER = "adapter_model.safetensors";

async function readToy(path: string): Promise<{ weight: number; steps: number }> {
  const kept: unknown = JSON.parse(await readFile(path, "utf8"));
  if (typeof kept !== "object" || kept === null || !("weight" in kept) || !("steps" in kept)) throw new Error("torn");
  return { weight: Number(kept.weight), steps: Number(kept.steps) };
}
