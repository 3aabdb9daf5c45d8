/** Models of random weights that training is measured on, as Hugging Face folders that PyTorch opens too. */

import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Random } from "../../trainer/engine/random.ts";
import { parseArchitecture, weightShapes } from "../../trainer/model/architecture.ts";
import { type Tensor, writeSafetensors } from "../../trainer/model/safetensors.ts";

/** A Llama's sizes, as config.json calls them. */
export interface Shape {
  readonly hidden_size: number;
  readonly intermediate_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  readonly num_key_value_heads: number;
  readonly vocab_size: number;
}

export const FIVE_MILLION: Shape = {
  hidden_size: 256,
  intermediate_size: 704,
  num_hidden_layers: 6,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  vocab_size: 512,
};

/** Writes the model and returns its number of parameters. */
export async function writeRandomLlama(dir: string, shape: Shape): Promise<number> {
  const config = {
    model_type: "llama",
    architectures: ["LlamaForCausalLM"],
    dtype: "float32",
    hidden_act: "silu",
    max_position_embeddings: 1024,
    rms_norm_eps: 1e-5,
    tie_word_embeddings: true,
    ...shape,
  };
  const random = Random.seeded(1);
  const tensors = new Map<string, Tensor>();
  let parameters = 0;
  for (const [name, dims] of weightShapes(parseArchitecture(config))) {
    const length = dims.reduce((product, size) => product * size, 1);
    const isNorm = name.includes("norm");
    tensors.set(name, {
      shape: dims,
      data: Float32Array.from({ length }, () => (isNorm ? 1 : 0.1 * (random.next() - 0.5))),
    });
    parameters += length;
  }
  await mkdir(dir, { recursive: true });
  await writeSafetensors(join(dir, "model.safetensors"), tensors);
  await writeFile(join(dir, "config.json"), JSON.stringify(config));
  return parameters;
}
