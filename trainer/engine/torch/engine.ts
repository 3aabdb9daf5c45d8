/**
 * The torch engine: a Python worker with transformers and PEFT (worker/), on a CPU, a GPU or several of them. What an
 * adapter starts with, how samples are cut into batches, and the folders of checkpoints and exports are made here, the same
 * as for the onnx engine; the worker has weights, gradients and moments.
 */

import { open } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";
import { CHECKPOINT_FILES, proveCheckpointFolder, writeCheckpointFolder } from "../checkpoint.ts";
import type { Cotangent, Engine, EngineInfo, Sample, StepOptions, StepReport, TokenScores } from "../contract.ts";
import { writeAdapter, writeModel } from "../export.ts";
import { loraTargets } from "../lora.ts";
import {
  checkSamples,
  dealMicrobatches,
  emptyScores,
  type PlannedMicrobatch,
  planMicrobatches,
  scatterScores,
} from "../onnx/microbatch.ts";
import { Random } from "../random.ts";
import type { TorchEngineConfig, TorchEngineOptions } from "./options.ts";
import { pythonPath } from "./python.ts";
import { prepare, type Prepared } from "./setup.ts";
import type { WireTensor } from "./wire.ts";
import { startWorker, type Worker, type WorkerOptions } from "./worker.ts";

const TOKENS_PER_MICROBATCH = { cpu: 1536, cuda: 16_384 } as const;
/** What the worker says when it has opened a model: what it runs on, and what it multiplies in. */
const openedSchema = z.object({ device: z.enum(["cpu", "cuda"]), precision: z.enum(["fp32", "bf16"]) });
const stepSchema = z.object({ gradNorm: z.string() });

/**
 * Opens a model folder for training.
 * @param start how the worker's processes come to be
 * @throws FulgurError ERR_CONFIG for options that make no sense, or a device that is not there; ERR_MODEL when the folder is
 * no supported model; ERR_PLATFORM where Python or a package of it is missing
 */
export async function createTorchEngine(
  options: TorchEngineOptions,
  start: (options: WorkerOptions) => Promise<Worker> = startWorker,
): Promise<Engine> {
  const prepared = await prepare(options);
  const { python, device, devices, threads } = prepared.config;
  const among = machines(prepared.config);
  const worker = await start({ python: pythonPath(python, process.env), device, devices, threads, ...among });
  try {
    const { message } = await worker.ask({ message: openMessage(prepared.config), tensors: prepared.initial });
    return new TorchEngine(prepared, openedSchema.parse(message), worker);
  } catch (error) {
    await worker.close();
    throw error;
  }
}

/** @throws FulgurError ERR_CONFIG where there are several machines and no place to meet, or the reverse */
function machines({ nodes, rendezvous }: TorchEngineConfig): Pick<WorkerOptions, "among"> {
  if (nodes === 1 && rendezvous === undefined) return {};
  if (nodes === 1 || rendezvous === undefined) {
    throw new FulgurError(
      "ERR_CONFIG",
      "Several machines want both --nodes, how many there are, and --rendezvous HOST:PORT, an address of this one that the others reach.",
    );
  }
  return { among: { nodes, node: 0, rendezvous } };
}

function openMessage(config: TorchEngineConfig): Record<string, unknown> {
  const { modelDir, method, optimizer, valueHead, temperature, precision = null, gradientCheckpointing } = config;
  const lora = method.type === "lora" ? { ...method, targets: loraTargets(method) } : method;
  return {
    command: "open",
    threads: Math.max(1, Math.floor(config.threads / config.devices)),
    options: { modelDir, method: lora, optimizer, valueHead, temperature, precision, gradientCheckpointing },
  };
}

class TorchEngine implements Engine {
  readonly info: EngineInfo;
  readonly #config: TorchEngineConfig;
  readonly #maxTokens: number;
  readonly #identity: string;
  readonly #worker: Worker;
  #random: Random;
  #steps = 0;
  #queue: Promise<unknown> = Promise.resolve();
  #closed = false;

  constructor(
    { config, info, identity, random }: Prepared,
    { device, precision }: z.infer<typeof openedSchema>,
    worker: Worker,
  ) {
    this.#config = config;
    this.#maxTokens = config.maxTokensPerMicrobatch ?? TOKENS_PER_MICROBATCH[device];
    this.#identity = identity;
    this.#random = random;
    this.#worker = worker;
    this.info = { ...info, precision };
  }

  score(samples: readonly Sample[]): Promise<TokenScores[]> {
    return this.#inTurn(() => this.#run("score", samples, null));
  }

  backward(samples: readonly Sample[], cotangents: readonly Cotangent[]): Promise<TokenScores[]> {
    return this.#inTurn(() => this.#run("backward", samples, cotangents));
  }

  step({ learningRate, maxGradNorm }: StepOptions): Promise<StepReport> {
    return this.#inTurn(async () => {
      const limit = Number.isFinite(maxGradNorm) ? maxGradNorm : null;
      const answer = await this.#ask({ command: "step", learningRate, maxGradNorm: limit });
      const gradNorm = Number(stepSchema.parse(answer.message).gradNorm);
      if (!Number.isFinite(gradNorm)) {
        throw new FulgurError(
          "ERR_INTERNAL",
          `The gradient norm is ${gradNorm}, so no step was taken and the gradient was dropped. Load the last checkpoint, and lower the learning rate or look for cotangents that are not finite.`,
        );
      }
      this.#steps += 1;
      return { gradNorm };
    });
  }

  save(dir: string): Promise<void> {
    return this.#inTurn(() => {
      const state = { identity: this.#identity, step: this.#steps, random: this.#random.state };
      return writeCheckpointFolder(dir, state, async (aside) => {
        await this.#ask({ command: "save", dir: aside });
        for (const file of CHECKPOINT_FILES) await syncFile(join(aside, file));
      });
    });
  }

  load(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { step, random } = await proveCheckpointFolder(dir, this.#identity);
      await this.#ask({ command: "load", dir, step });
      this.#steps = step;
      this.#random = new Random(random);
    });
  }

  exportAdapter(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { method, modelDir } = this.#config;
      if (method.type !== "lora") {
        throw new FulgurError("ERR_CONFIG", "This engine trains full weights and has no adapter; use exportWeights.");
      }
      const { tensors } = await this.#ask({ command: "adapter" });
      await writeAdapter(dir, tensors, { method, base: modelDir });
    });
  }

  exportWeights(dir: string): Promise<void> {
    return this.#inTurn(() =>
      writeModel(
        dir,
        async (path) => {
          await this.#ask({ command: "export", path });
          await syncFile(path);
        },
        this.#config.modelDir,
      ),
    );
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#queue;
    await this.#worker.close();
  }

  async #run(
    command: "score" | "backward",
    samples: readonly Sample[],
    cotangents: readonly Cotangent[] | null,
  ): Promise<TokenScores[]> {
    const { method } = this.#config;
    const replicas = this.#config.nodes * this.#config.devices;
    const { architecture, valueHead } = this.info;
    checkSamples(samples, { ...architecture, valueHead }, cotangents ?? undefined);
    const scores = emptyScores(samples, { valueHead });
    const plan = planMicrobatches(samples, cotangents, { maxTokens: this.#maxTokens, replicas });
    if (plan.length === 0) return scores;
    const dealt = dealMicrobatches(plan, replicas);
    const all = dealt.flatMap((hand, rank) => hand.map((planned) => ({ planned, rank })));
    // From the engine's own stream, so that a resumed run leaves out what it would have left out.
    const dropout = command === "backward" && method.type === "lora" && method.dropout > 0;
    const seed = dropout ? { seed: Math.floor(this.#random.next() * 2 ** 32) } : {};
    const batches = all.map(({ planned, rank }) => ({
      rank,
      rows: planned.microbatch.batch,
      time: planned.microbatch.time,
      targets: planned.microbatch.targets.length,
    }));
    const pulled = command === "backward";
    const tensors = joined(
      all.map(({ planned }) => planned),
      { pulled, valueHead },
    );
    const answer = await this.#ask({ command, batches, ...seed }, tensors);
    let at = 0;
    for (const { planned } of all) {
      const end = at + planned.sampleOf.length;
      const part = (name: string): Float32Array => {
        const data = answer.tensors.get(name)?.data.subarray(at, end);
        if (data?.length === end - at) return data;
        throw new FulgurError("ERR_INTERNAL", `The torch worker's ${name} are of another length than its batch.`);
      };
      const values = valueHead ? { values: part("values") } : {};
      scatterScores(scores, planned, { logprobs: part("logprobs"), entropy: part("entropy"), ...values });
      at = end;
    }
    return scores;
  }

  #ask(message: Readonly<Record<string, unknown>>, tensors: ReadonlyMap<string, WireTensor> = new Map()) {
    return this.#worker.ask({ message, tensors });
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (this.#closed) return Promise.reject(new FulgurError("ERR_INTERNAL", "The engine is closed; make a new one."));
    const turn = this.#queue.then(work);
    this.#queue = turn.catch(() => undefined);
    return turn;
  }
}

/** Arrays of all batches, one after another. */
function joined(
  plan: readonly PlannedMicrobatch[],
  { pulled, valueHead }: { readonly pulled: boolean; readonly valueHead: boolean },
): Map<string, WireTensor> {
  const batches = plan.map(({ microbatch }) => microbatch);
  const ids = (pick: (batch: (typeof batches)[number]) => BigInt64Array): WireTensor => ({
    data: Int32Array.from(batches.flatMap((batch) => Array.from(pick(batch), Number))),
  });
  const floats = (pick: (batch: (typeof batches)[number]) => ArrayLike<number>): WireTensor => ({
    data: Float32Array.from(batches.flatMap((batch) => Array.from(pick(batch)))),
  });
  const tensors = new Map([
    ["tokens", ids(({ tokens }) => tokens)],
    ["rows", ids(({ rows }) => rows)],
    ["targets", ids(({ targets }) => targets)],
  ]);
  if (!pulled) return tensors;
  tensors.set(
    "dLogprobs",
    floats(({ dLogprobs }) => dLogprobs),
  );
  if (batches.some(({ dEntropy }) => dEntropy !== null)) {
    const none = (count: number): Float32Array => new Float32Array(count);
    tensors.set(
      "dEntropy",
      floats(({ dEntropy, targets }) => dEntropy ?? none(targets.length)),
    );
  }
  if (valueHead)
    tensors.set(
      "dValues",
      floats(({ dValues }) => dValues),
    );
  return tensors;
}

/** Sees to it that what the worker has written survives a power loss. */
async function syncFile(path: string): Promise<void> {
  const file = await open(path, "r+");
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
