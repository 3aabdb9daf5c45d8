/** The model that decoding is measured on: random weights of a shape, as a Hugging Face folder that any server takes. */

import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArchitecture, weightShapes } from "../../trainer/model/architecture.ts";
import { type Tensor, writeSafetensors } from "../../trainer/model/safetensors.ts";

/** About 4.7 million parameters: 6 layers, width 256, 8 query and 4 key heads, vocabulary 512. */
export const FIVE_MILLION = {
  model_type: "llama",
  architectures: ["LlamaForCausalLM"],
  torch_dtype: "float32",
  hidden_act: "silu",
  hidden_size: 256,
  intermediate_size: 704,
  num_hidden_layers: 6,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  vocab_size: 512,
  max_position_embeddings: 2048,
  rms_norm_eps: 1e-5,
  rope_theta: 10_000,
  tie_word_embeddings: false,
  bos_token_id: 509,
  eos_token_id: 511,
} as const;

/** About 132 million parameters: 12 layers, width 768, 12 query and 4 key heads, vocabulary 32,000. */
export const HUNDRED_THIRTY_MILLION: BenchShape = {
  ...FIVE_MILLION,
  hidden_size: 768,
  intermediate_size: 2304,
  num_hidden_layers: 12,
  num_attention_heads: 12,
  num_key_value_heads: 4,
  vocab_size: 32_000,
};

/** About 0.7 million parameters: the size of the built-in model. */
export const BUILT_IN: BenchShape = {
  ...FIVE_MILLION,
  hidden_size: 128,
  intermediate_size: 256,
  num_hidden_layers: 4,
  num_attention_heads: 2,
  num_key_value_heads: 2,
};

/** A config.json whose sizes may differ from the headline one. */
export type BenchShape = {
  readonly [Field in keyof typeof FIVE_MILLION]: string | number | boolean | readonly string[];
};

/** Writes a model and returns its number of parameters. */
export async function writeBenchModel(dir: string, shape: BenchShape = FIVE_MILLION): Promise<number> {
  const random = noise(1);
  // The wider a layer, the smaller its weights, so that activations keep their size from layer to layer.
  const spread = 0.06 * Math.sqrt(FIVE_MILLION.hidden_size / Number(shape.hidden_size));
  const tensors = new Map<string, Tensor>();
  let parameters = 0;
  for (const [name, size] of weightShapes(parseArchitecture(shape))) {
    const length = size.reduce((product, each) => product * each, 1);
    const isNorm = name.includes("norm");
    const data = new Float32Array(length).fill(1);
    if (!isNorm) for (let i = 0; i < length; i++) data[i] = spread * random();
    tensors.set(name, { shape: size, data });
    parameters += length;
  }
  await mkdir(dir, { recursive: true });
  await writeSafetensors(join(dir, "model.safetensors"), tensors);
  const write = (file: string, value: unknown): Promise<void> => writeFile(join(dir, file), JSON.stringify(value));
  await write("config.json", shape);
  await write("generation_config.json", { eos_token_id: 511 });
  await write("tokenizer.json", tokenizer(Number(shape.vocab_size)));
  await write("tokenizer_config.json", { tokenizer_class: "PreTrainedTokenizerFast", eos_token: "<|end|>" });
  return parameters;
}

/** Writes a LoRA adapter of rank 16 on every linear layer. */
export async function writeBenchAdapter(dir: string, seed: number, shape: BenchShape = FIVE_MILLION): Promise<void> {
  const random = noise(seed);
  const rank = 16;
  const tensors = new Map<string, Tensor>();
  for (const [name, [out = 0, input = 0]] of weightShapes(parseArchitecture(shape))) {
    const layer = /^(.+_proj)\.weight$/.exec(name)?.[1];
    if (layer === undefined) continue;
    for (const [matrix, size] of [
      ["lora_A", [rank, input]],
      ["lora_B", [out, rank]],
    ] as const) {
      const data = Float32Array.from({ length: size[0] * size[1] }, () => 0.02 * random());
      tensors.set(`base_model.model.${layer}.${matrix}.weight`, { shape: size, data });
    }
  }
  await mkdir(dir, { recursive: true });
  await writeSafetensors(join(dir, "adapter_model.safetensors"), tensors);
  const modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
  await writeFile(
    join(dir, "adapter_config.json"),
    JSON.stringify({
      peft_type: "LORA",
      task_type: "CAUSAL_LM",
      r: rank,
      lora_alpha: 32,
      bias: "none",
      target_modules: modules,
    }),
  );
}

/** A prompt of token ids that shares no prefix with another index. */
export function benchPrompt(index: number, length: number): number[] {
  const random = noise(1000 + index);
  return Array.from({ length }, () => Math.floor((random() + 1.5) * 166) % 500);
}

/** Bytes, three special tokens at ids 509 to 511, and filler: an id for every row of the vocabulary. */
function tokenizer(vocab: number): Record<string, unknown> {
  let next = 0x100;
  const bytes = Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCodePoint(isPrintable ? byte : next++);
  });
  const fillers = Array.from({ length: vocab - 256 }, (_, i) => [`<f${i}>`, 256 + i] as const);
  const pieces = [...bytes.map((piece, id) => [piece, id] as const), ...fillers];
  const special = ["<|begin|>", "<|pad|>", "<|end|>"];
  return {
    version: "1.0",
    added_tokens: special.map((content, i) => ({
      id: 509 + i,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      vocab: Object.fromEntries(pieces.filter(([, id]) => id < 509 || id > 511)),
      merges: [],
    },
  };
}

function noise(seed: number): () => number {
  let state = seed | 0;
  const uniform = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    return (state >>> 8) / 2 ** 24;
  };
  return () => uniform() + uniform() + uniform() - 1.5;
}
