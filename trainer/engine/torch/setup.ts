/** From options to all that a worker is opened with: what is trained besides the model's own weights is made here. */

import { createHash } from "node:crypto";
import { FulgurError } from "#shared/errors.ts";
import { readArchitecture, weightShapes } from "../../model/architecture.ts";
import { openModelWeights, type Tensor } from "../../model/safetensors.ts";
import type { EngineInfo } from "../contract.ts";
import { identityOf } from "../identity.ts";
import { startingLora } from "../lora.ts";
import { Random } from "../random.ts";
import { initialValueHead } from "../value-head.ts";
import { type TorchEngineConfig, type TorchEngineOptions, torchEngineOptionsSchema } from "./options.ts";

/** An engine before its worker is opened. */
export interface Prepared {
  readonly config: TorchEngineConfig;
  /** All but what the device decides. */
  readonly info: Omit<EngineInfo, "precision">;
  /** The adapter and the critic as they start: the same, from the same seed, as the onnx engine's. */
  readonly initial: ReadonlyMap<string, Tensor>;
  readonly random: Random;
  readonly identity: string;
}

/**
 * Reads and checks everything that needs no Python.
 * @throws FulgurError ERR_CONFIG for options that make no sense; ERR_MODEL when the folder is no supported model
 */
export async function prepare(options: TorchEngineOptions): Promise<Prepared> {
  const parsed = torchEngineOptionsSchema.safeParse(options);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new FulgurError(
      "ERR_CONFIG",
      `Engine option ${issue?.path.join(".") ?? ""}: ${issue?.message ?? "invalid"}.`,
    );
  }
  const config = parsed.data;
  const { method, modelDir, valueHead } = config;
  const architecture = await readArchitecture(modelDir);
  const shapes = weightShapes(architecture);
  const random = Random.seeded(method.type === "lora" ? method.seed : 0);
  const initial =
    method.type === "lora" ? await startingLora(architecture, shapes, method, random) : new Map<string, Tensor>();
  if (valueHead) for (const [name, tensor] of initialValueHead(architecture.width)) initial.set(name, tensor);
  const base = [...shapes.values()].reduce((sum, shape) => sum + shape.reduce((product, size) => product * size, 1), 0);
  const made = [...initial.values()].reduce((sum, { data }) => sum + data.length, 0);
  const info = {
    name: "torch",
    method: method.type,
    valueHead,
    architecture,
    parameters: { total: base + made, trained: method.type === "lora" ? made : base + made },
  };
  const sha256 = method.type === "lora" ? await baseSha256(modelDir, shapes) : "";
  return { config, info, initial, random, identity: identityOf(info, config, sha256) };
}

/** Of the model's weights as float32, one after another: all at once they might not fit. */
async function baseSha256(modelDir: string, shapes: ReadonlyMap<string, readonly number[]>): Promise<string> {
  const hash = createHash("sha256");
  const file = await openModelWeights(modelDir);
  try {
    for (const name of shapes.keys()) {
      const { data } = await file.read(name);
      hash.update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
  } finally {
    await file.close();
  }
  return hash.digest("hex");
}
