/** From options to everything that an engine's replicas are made of: weights read, checked, shared and dealt. */

import { createHash } from "node:crypto";
import { FulgurError } from "#shared/errors.ts";
import { readArchitecture, weightShapes } from "../../model/architecture.ts";
import { readModelWeights, type Tensor } from "../../model/safetensors.ts";
import type { EngineInfo } from "../contract.ts";
import { identityOf } from "../identity.ts";
import { startingLora } from "../lora.ts";
import { type OnnxEngineConfig, type OnnxEngineOptions, onnxEngineOptionsSchema } from "../options.ts";
import { Random } from "../random.ts";
import { initialValueHead } from "../value-head.ts";
import { createParameterStore, dealSlots, type ParameterStore } from "./parameters.ts";
import type { ReplicaSetup } from "./replica.ts";

/** Frozen weights of more are read where they lie by all sessions; as constants they would be held several times by each. */
const MAX_CONSTANT_BYTES = 2 ** 30;

/** An engine before its threads are started. */
export interface Prepared {
  readonly config: OnnxEngineConfig;
  readonly info: EngineInfo;
  readonly store: ParameterStore;
  /** Weights that are not trained: the base model under LoRA, nothing otherwise. */
  readonly frozen: ReadonlyMap<string, Tensor>;
  readonly setups: readonly ReplicaSetup[];
  readonly random: Random;
  /** What a checkpoint belongs to: tensors of another model, method or optimizer would fit by chance or not at all. */
  readonly identity: string;
}

/**
 * Reads and checks everything an engine needs.
 * @throws FulgurError ERR_CONFIG for options that make no sense; ERR_MODEL when the folder is no supported model
 */
export async function prepare(options: OnnxEngineOptions): Promise<Prepared> {
  const parsed = onnxEngineOptionsSchema.safeParse(options);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new FulgurError(
      "ERR_CONFIG",
      `Engine option ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "invalid"}.`,
    );
  }
  const config = parsed.data;
  const { method, modelDir, threads } = config;
  const replicas = Math.min(config.replicas ?? threads, threads);

  const architecture = await readArchitecture(modelDir);
  const shapes = weightShapes(architecture);
  // Under LoRA all replicas read the base, so it is shared; full weights are laid out anew anyway.
  const base = await readModelWeights(modelDir, shapes, { shared: method.type === "lora" });
  const random = Random.seeded(method.type === "lora" ? method.seed : 0);
  let trained: ReadonlyMap<string, Tensor> =
    method.type === "lora" ? await startingLora(architecture, shapes, method, random) : base;
  if (config.valueHead) trained = new Map([...trained, ...initialValueHead(architecture.width)]);
  const frozen: ReadonlyMap<string, Tensor> = method.type === "lora" ? base : new Map();
  const frozenAsInputs = config.frozenAsInputs ?? sizeOf(frozen) * 4 > MAX_CONSTANT_BYTES;
  const store = createParameterStore(trained, replicas);
  const setups = dealSlots(store.slots, replicas).map((owned, index) => ({
    architecture,
    temperature: config.temperature,
    threads: Math.max(1, Math.floor(threads / replicas)),
    optimizer: config.optimizer,
    loraScale: method.type === "lora" ? method.alpha / method.rank : null,
    store,
    frozen,
    frozenAsInputs,
    maxActivationBytes: config.maxActivationBytes / replicas,
    index,
    owned,
  }));
  const trainedCount = sizeOf(trained);
  const info: EngineInfo = {
    name: "onnx",
    precision: "fp32",
    method: method.type,
    valueHead: config.valueHead,
    architecture,
    parameters: { total: method.type === "lora" ? trainedCount + sizeOf(base) : trainedCount, trained: trainedCount },
  };
  return { config, info, store, frozen, setups, random, identity: identityOf(info, config, sha256Of(frozen)) };
}

function sha256Of(frozen: ReadonlyMap<string, Tensor>): string {
  const hash = createHash("sha256");
  for (const { data } of frozen.values()) hash.update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return hash.digest("hex");
}

function sizeOf(tensors: ReadonlyMap<string, Tensor>): number {
  let count = 0;
  for (const { data } of tensors.values()) count += data.length;
  return count;
}
