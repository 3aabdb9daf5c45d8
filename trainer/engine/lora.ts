/** Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): which weights they have, what they are called, how they start. */

import { join } from "node:path";
import type { Architecture } from "../model/architecture.ts";
import { readTensors, type Tensor } from "../model/safetensors.ts";
import { LINEAR_LAYERS, type Method } from "./options.ts";
import type { Random } from "./random.ts";

/** LoRA's settings. */
export type LoraMethod = Extract<Method, { type: "lora" }>;

/** The linear layers that carry an adapter. */
export function loraTargets(method: LoraMethod): readonly string[] {
  return method.targets === "all-linear"
    ? LINEAR_LAYERS
    : LINEAR_LAYERS.filter((name) => method.targets.includes(name));
}

/** Path of a linear layer within the model, as Hugging Face names it without `.weight`. */
export function linearPath(layer: number, name: string): string {
  const block = name === "gate_proj" || name === "up_proj" || name === "down_proj" ? "mlp" : "self_attn";
  return `model.layers.${layer}.${block}.${name}`;
}

/** PEFT's name of one factor of one layer's adapter. */
export function loraName(path: string, factor: "A" | "B"): string {
  return `base_model.model.${path}.lora_${factor}.weight`;
}

/** Every adapter weight's name and shape in file order: A [rank, in], B [out, rank]. */
export function loraShapes(
  architecture: Architecture,
  linearShapes: ReadonlyMap<string, readonly number[]>,
  method: LoraMethod,
): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  for (let layer = 0; layer < architecture.layers; layer++) {
    for (const name of loraTargets(method)) {
      const path = linearPath(layer, name);
      const [out = 0, input = 0] = linearShapes.get(`${path}.weight`) ?? [];
      shapes.set(loraName(path, "A"), [method.rank, input]);
      shapes.set(loraName(path, "B"), [out, method.rank]);
    }
  }
  return shapes;
}

/**
 * What an engine's adapter starts as: the one in `adapterDir`, or a fresh one.
 * @param weights name → shape of the base's weights
 * @throws FulgurError ERR_MODEL when the folder's adapter is missing, corrupt or of another shape
 */
export async function startingLora(
  architecture: Architecture,
  weights: ReadonlyMap<string, readonly number[]>,
  method: LoraMethod,
  random: Random,
): Promise<Map<string, Tensor>> {
  const shapes = loraShapes(architecture, weights, method);
  return method.adapterDir === undefined
    ? initialLora(shapes, random)
    : readTensors(join(method.adapterDir, "adapter_model.safetensors"), shapes);
}

/**
 * A fresh adapter: A uniform within ±1/√in (PEFT's Kaiming start with a = √5), B zero, so that it changes nothing yet.
 * @param shapes as `loraShapes` gives
 */
export function initialLora(shapes: ReadonlyMap<string, readonly number[]>, random: Random): Map<string, Tensor> {
  const tensors = new Map<string, Tensor>();
  for (const [name, shape] of shapes) {
    const [rows = 0, columns = 0] = shape;
    const data = new Float32Array(rows * columns);
    if (name.endsWith("lora_A.weight")) {
      const bound = columns ** -0.5;
      for (let i = 0; i < data.length; i++) data[i] = (2 * random.next() - 1) * bound;
    }
    tensors.set(name, { shape, data });
  }
  return tensors;
}
