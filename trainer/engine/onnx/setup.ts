/** From options to everything that an engine's replicas are made of: weights read, checked, shared and dealt. */

import { createHash } from "node:crypto";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import { readArchitecture, weightShapes } from "../../model/architecture.ts";
import { readModelWeights, readTensors, type Tensor } from "../../model/safetensors.ts";
import type { EngineInfo } from "../contract.ts";
import { initialLora, loraShapes, loraTargets } from "../lora.ts";
import { type OnnxEngineConfig, type OnnxEngineOptions, onnxEngineOptionsSchema } from "../options.ts";
import { Random } from "../random.ts";
import { initialValueHead } from "../value-head.ts";
import { createParameterStore, dealSlots, type ParameterStore } from "./parameters.ts";
import type { ReplicaSetup } from "./replica.ts";

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
  const base = await readModelWeights(modelDir, shapes);
  const random = Random.seeded(method.type === "lora" ? method.seed : 0);
  let trained: ReadonlyMap<string, Tensor> = base;
  if (method.type === "lora") {
    const adapterShapes = loraShapes(architecture, shapes, method);
    trained =
      method.adapterDir === undefined
        ? initialLora(adapterShapes, random)
        : await readTensors(join(method.adapterDir, "adapter_model.safetensors"), adapterShapes);
  }
  if (config.valueHead) trained = new Map([...trained, ...initialValueHead(architecture.width)]);
  const frozen: ReadonlyMap<string, Tensor> = method.type === "lora" ? shared(base) : new Map();
  const store = createParameterStore(trained, replicas);
  const setups = dealSlots(store.slots, replicas).map((owned, index) => ({
    architecture,
    temperature: config.temperature,
    threads: Math.max(1, Math.floor(threads / replicas)),
    optimizer: config.optimizer,
    loraScale: method.type === "lora" ? method.alpha / method.rank : null,
    store,
    frozen,
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
  return { config, info, store, frozen, setups, random, identity: identityOf(config, info, frozen) };
}

function identityOf(config: OnnxEngineConfig, info: EngineInfo, frozen: ReadonlyMap<string, Tensor>): string {
  const { family, layers, width, vocab } = info.architecture;
  const { method, optimizer, valueHead } = config;
  const model = `${family} ${layers}x${width} vocab ${vocab}`;
  const trainer = valueHead ? `${optimizer.type}, value head` : optimizer.type;
  if (method.type === "full") return `${model}, full weights, ${trainer}`;
  // An adapter means nothing on other base weights, whatever their shapes.
  const hash = createHash("sha256");
  for (const { data } of frozen.values()) hash.update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  const base = hash.digest("hex").slice(0, 16);
  return `${model}, base ${base}, lora rank ${method.rank} alpha ${method.alpha} on ${loraTargets(method).join("+")}, ${trainer}`;
}

/** Copies weights into memory that worker threads share, once for all of them. */
function shared(tensors: ReadonlyMap<string, Tensor>): Map<string, Tensor> {
  const result = new Map<string, Tensor>();
  for (const [name, { shape, data }] of tensors) {
    const copy = new Float32Array(new SharedArrayBuffer(data.byteLength));
    copy.set(data);
    result.set(name, { shape, data: copy });
  }
  return result;
}

function sizeOf(tensors: ReadonlyMap<string, Tensor>): number {
  let count = 0;
  for (const { data } of tensors.values()) count += data.length;
  return count;
}
