/** Models of random weights that training is measured on, as Hugging Face folders that PyTorch opens too. */

import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Random } from "../../trainer/engine/random.ts";
import { parseArchitecture, weightShapes } from "../../trainer/model/architecture.ts";
import { type Tensor, writeSafetensors } from "../../trainer/model/safetensors.ts";

/** A decoder's sizes, as config.json calls them. */
export interface Shape {
  /** Llama, when it is not said. */
  readonly model_type?: "qwen2";
  readonly hidden_size: number;
  readonly intermediate_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  readonly num_key_value_heads: number;
  readonly vocab_size: number;
  /** Whether the head is the embedding; true when it is not said. */
  readonly tie_word_embeddings?: boolean;
}

export const FIVE_MILLION: Shape = {
  hidden_size: 256,
  intermediate_size: 704,
  num_hidden_layers: 6,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  vocab_size: 512,
};

/** The shape of the decoding benchmark's larger model. */
export const HUNDRED_THIRTY_MILLION: Shape = {
  hidden_size: 768,
  intermediate_size: 2304,
  num_hidden_layers: 12,
  num_attention_heads: 12,
  num_key_value_heads: 4,
  vocab_size: 32_000,
  tie_word_embeddings: false,
};

/** Qwen2.5-0.5B's. */
export const HALF_BILLION: Shape = {
  model_type: "qwen2",
  hidden_size: 896,
  intermediate_size: 4864,
  num_hidden_layers: 24,
  num_attention_heads: 14,
  num_key_value_heads: 2,
  vocab_size: 151_936,
};

/** Writes the model and returns its number of parameters. */
export async function writeRandomModel(dir: string, shape: Shape, dtype: "F32" | "BF16" = "F32"): Promise<number> {
  const config = {
    model_type: "llama",
    architectures: [shape.model_type === "qwen2" ? "Qwen2ForCausalLM" : "LlamaForCausalLM"],
    dtype: dtype === "F32" ? "float32" : "bfloat16",
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
    const data = new Float32Array(length).fill(1);
    if (!name.includes("norm")) for (let i = 0; i < length; i++) data[i] = 0.1 * (random.next() - 0.5);
    tensors.set(name, { shape: dims, data });
    parameters += length;
  }
  await mkdir(dir, { recursive: true });
  await writeSafetensors(join(dir, "model.safetensors"), tensors, { dtype });
  await writeFile(join(dir, "config.json"), JSON.stringify(config));
  return parameters;
}
