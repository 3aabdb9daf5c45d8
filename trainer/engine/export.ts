/** Writes what others load: PEFT adapter folders and Hugging Face model folders. Each folder appears whole or not at all. */

import { copyFile, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { type Tensor, syncFolder, writeSafetensors } from "../model/safetensors.ts";
import { replaceFolder, writeSynced } from "./checkpoint.ts";
import { linearPath, loraName, type LoraMethod, loraTargets } from "./lora.ts";

/** Files of a model folder that describe it, beside its weights. */
const COPIED =
  /^(tokenizer.*|special_tokens_map|added_tokens|vocab|merges|chat_template|generation_config|config)\.(json|txt|model|jinja)$/;

/**
 * Writes a PEFT adapter: `adapter_config.json` and `adapter_model.safetensors`.
 * @param base what the adapter is for, as PEFT's `base_model_name_or_path`
 * @throws FulgurError ERR_DISK when it cannot be written
 */
export async function writeAdapter(
  dir: string,
  tensors: ReadonlyMap<string, Tensor>,
  { method, base }: { readonly method: LoraMethod; readonly base: string },
): Promise<void> {
  const config = {
    peft_type: "LORA",
    task_type: "CAUSAL_LM",
    base_model_name_or_path: base,
    r: method.rank,
    lora_alpha: method.alpha,
    lora_dropout: 0,
    target_modules: loraTargets(method),
    bias: "none",
    fan_in_fan_out: false,
    inference_mode: true,
    init_lora_weights: true,
    modules_to_save: null,
    use_rslora: false,
    use_dora: false,
  };
  await writeFolder(dir, async (aside) => {
    await writeSafetensors(join(aside, "adapter_model.safetensors"), tensors);
    await writeSynced(join(aside, "adapter_config.json"), `${JSON.stringify(config, null, 2)}\n`);
  });
}

/**
 * Writes a Hugging Face folder in float32: the given weights, and config, tokenizer and chat template of `modelDir`.
 * @param weights what they are, or what writes and syncs them as a safetensors file at a path
 * @throws FulgurError ERR_DISK when it cannot be written
 */
export async function writeModel(
  dir: string,
  weights: ReadonlyMap<string, Tensor> | ((path: string) => Promise<void>),
  modelDir: string,
): Promise<void> {
  await writeFolder(dir, async (aside) => {
    for (const name of await readdir(modelDir)) {
      if (COPIED.test(name)) await copyFile(join(modelDir, name), join(aside, name));
    }
    const config: unknown = JSON.parse(await readFile(join(modelDir, "config.json"), "utf8"));
    const own = { ...(typeof config === "object" ? config : {}), torch_dtype: "float32", dtype: "float32" };
    await writeSynced(join(aside, "config.json"), `${JSON.stringify(own, null, 2)}\n`);
    const path = join(aside, "model.safetensors");
    await (typeof weights === "function" ? weights(path) : writeSafetensors(path, weights));
  });
}

/**
 * Base weights with an adapter added in: W + alpha / rank · B·A.
 * @param base the model's weights by Hugging Face name; not changed
 */
export function mergeAdapter(
  base: ReadonlyMap<string, Tensor>,
  adapter: ReadonlyMap<string, Tensor>,
  { method, layers }: { readonly method: LoraMethod; readonly layers: number },
): Map<string, Tensor> {
  const merged = new Map(base);
  const scale = method.alpha / method.rank;
  for (let layer = 0; layer < layers; layer++) {
    for (const name of loraTargets(method)) {
      const path = linearPath(layer, name);
      const weight = base.get(`${path}.weight`);
      const down = adapter.get(loraName(path, "A"));
      const up = adapter.get(loraName(path, "B"));
      if (weight === undefined || down === undefined || up === undefined) {
        throw new FulgurError("ERR_INTERNAL", `The adapter or the model lacks "${path}".`);
      }
      merged.set(`${path}.weight`, { shape: weight.shape, data: plusProduct(weight, up, down, scale) });
    }
  }
  return merged;
}

function plusProduct(weight: Tensor, up: Tensor, down: Tensor, scale: number): Float32Array {
  const [out = 0, input = 0] = weight.shape;
  const [rank = 0] = down.shape;
  const row = new Float64Array(input);
  const result = new Float32Array(weight.data.length);
  for (let o = 0; o < out; o++) {
    row.fill(0);
    for (let r = 0; r < rank; r++) {
      const factor = up.data[o * rank + r] ?? 0;
      for (let i = 0; i < input; i++) row[i] = (row[i] ?? 0) + factor * (down.data[r * input + i] ?? 0);
    }
    for (let i = 0; i < input; i++) result[o * input + i] = (weight.data[o * input + i] ?? 0) + scale * (row[i] ?? 0);
  }
  return result;
}

async function writeFolder(dir: string, write: (aside: string) => Promise<void>): Promise<void> {
  const aside = `${dir}.${process.pid}.tmp`;
  try {
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true });
    await write(aside);
    await syncFolder(aside);
    await replaceFolder(aside, dir);
  } catch (cause) {
    await rm(aside, { recursive: true, force: true });
    throw new FulgurError("ERR_DISK", `Cannot write ${dir} (${messageOf(cause)}). Check its folder and free space.`, {
      cause,
    });
  }
}
