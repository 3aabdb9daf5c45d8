/** A tiny model with random weights and a byte tokenizer, made in a folder: small enough to make anew for every test. */

import { createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArchitecture, weightShapes } from "../../../trainer/model/architecture.ts";
import { readSafetensors, type Tensor, writeSafetensors } from "../../../trainer/model/safetensors.ts";

/** ChatML with Hermes tools, as short as it can be. */
export const TEMPLATE = [
  "{%- if tools %}<|im_start|>system\n{%- if messages[0].role == 'system' %}{{ messages[0].content }}{%- endif %}",
  "<tools>{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}</tools><|im_end|>\n",
  "{%- elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{%- endif %}",
  "{%- for message in messages %}{%- if message.role == 'user' %}<|im_start|>user\n{{ message.content }}<|im_end|>\n",
  "{%- elif message.role == 'assistant' %}<|im_start|>assistant\n{{ message.content }}",
  "{%- if message.tool_calls %}{%- for call in message.tool_calls %}<tool_call>\n",
  '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>',
  "{%- endfor %}{%- endif %}<|im_end|>\n",
  "{%- elif message.role == 'tool' %}<|im_start|>user\n<tool_response>{{ message.content }}</tool_response><|im_end|>\n",
  "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}",
]
  .join("")
  .replaceAll("\n{%-", "{{ '\\n' }}{%-");

const SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/** tokenizer.json of a byte-level tokenizer with a few merges and ChatML's special tokens. */
export function tinyTokenizer(): Record<string, unknown> {
  const alphabet = byteAlphabet();
  const merges: [string, string][] = [
    ["t", "o"],
    ["to", "o"],
    ["too", "l"],
    ["e", "r"],
    ["a", "n"],
    ["Ġ", "a"],
  ];
  const pieces = [...alphabet, ...merges.map(([a, b]) => a + b)];
  const vocab = Object.fromEntries(pieces.map((piece, id) => [piece, id]));
  return {
    version: "1.0",
    added_tokens: SPECIAL.map((content, i) => ({
      id: pieces.length + i,
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
    model: { type: "BPE", vocab, merges, ignore_merges: false, byte_fallback: false },
  };
}

/** Which model to make. */
export interface TinyModelOptions {
  readonly seed?: number;
  /** Fields of config.json that differ from the small Llama. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** Spread of the random weights: more makes answers more certain. */
  readonly spread?: number;
  /** tokenizer_config.json's chat_template; null leaves it out. */
  readonly template?: string | null;
}

/** Writes a model folder and returns its config. */
export async function writeTinyModel(dir: string, options: TinyModelOptions = {}): Promise<Record<string, unknown>> {
  const { seed = 1, spread = 0.4, template = TEMPLATE } = options;
  const tokenizer = tinyTokenizer();
  const config = {
    model_type: "llama",
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    vocab_size: 265,
    max_position_embeddings: 512,
    rms_norm_eps: 1e-5,
    rope_theta: 10_000,
    tie_word_embeddings: true,
    eos_token_id: 264,
    bos_token_id: 262,
    ...options.config,
  };
  const random = randomNumbers(seed);
  const tensors = new Map<string, Tensor>();
  for (const [name, shape] of weightShapes(parseArchitecture(config))) {
    const length = shape.reduce((product, size) => product * size, 1);
    const isNorm = name.includes("norm");
    const data = Float32Array.from({ length }, () => (isNorm ? 1 : 0) + spread * random());
    tensors.set(name, { shape, data });
  }
  await mkdir(dir, { recursive: true });
  await writeSafetensors(join(dir, "model.safetensors"), tensors);
  await writeJson(join(dir, "config.json"), config);
  await writeJson(join(dir, "tokenizer.json"), tokenizer);
  await writeJson(join(dir, "generation_config.json"), { eos_token_id: [264] });
  await writeJson(join(dir, "tokenizer_config.json"), {
    tokenizer_class: "PreTrainedTokenizerFast",
    eos_token: "<|im_end|>",
    clean_up_tokenization_spaces: false,
    ...(template === null ? {} : { chat_template: template }),
  });
  return config;
}

/** The arguments that the scripted model writes: spaced and ordered as no JSON library would. */
export const SCRIPTED_ARGUMENTS = '{"b":2,  "a":1}';
const SCRIPT = ["<tool_call>", `\n{"name": "add", "arguments": ${SCRIPTED_ARGUMENTS}}\n`, "</tool_call>"];

/**
 * Writes a model that answers every chat with one tool call: each token decides the next, and the call's pieces are
 * tokens of their own. Its weights are a table: one-hot embeddings, a layer that does nothing, and a head that looks up.
 */
export async function writeScriptedModel(dir: string): Promise<void> {
  const width = 272;
  const config = {
    hidden_size: width,
    intermediate_size: 2,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    vocab_size: 268,
    tie_word_embeddings: false,
  };
  await writeTinyModel(dir, { config, spread: 0 });
  const weights = await readSafetensors(join(dir, "model.safetensors"));
  const embedding = weights.get("model.embed_tokens.weight")?.data ?? new Float32Array(0);
  for (let token = 0; token < 268; token++) embedding[token * width + token] = 1;
  const head = weights.get("lm_head.weight")?.data ?? new Float32Array(0);
  // The line break that ends the header, then the call's three pieces, then the end of the turn.
  const chain = [10, 265, 266, 267, 264];
  // RMSNorm makes the one of a one-hot vector √272 ≈ 16.5, so this is a logit of about 33.
  for (let i = 1; i < chain.length; i++) head[(chain[i] ?? 0) * width + (chain[i - 1] ?? 0)] = 2;
  await writeSafetensors(join(dir, "model.safetensors"), weights);
  const tokenizer = tinyTokenizer();
  const added = SCRIPT.map((content, i) => ({
    id: 265 + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: false,
  }));
  const known = Array.isArray(tokenizer["added_tokens"]) ? tokenizer["added_tokens"] : [];
  await writeJson(join(dir, "tokenizer.json"), { ...tokenizer, added_tokens: [...known, ...added] });
}

/** Which adapter to make. */
export interface TinyAdapterOptions {
  readonly name: string;
  readonly modelDir: string;
  readonly seed?: number;
  /** Leaves manifest.json out. */
  readonly manifest?: "none" | "full";
}

/** Writes a LoRA adapter of rank 4 on all linear layers, with its manifest. */
export async function writeTinyAdapter(dir: string, options: TinyAdapterOptions): Promise<void> {
  const { name, modelDir, seed = 7, manifest = "full" } = options;
  const config: unknown = JSON.parse(await readFile(join(modelDir, "config.json"), "utf8"));
  const random = randomNumbers(seed);
  const rank = 4;
  const tensors = new Map<string, Tensor>();
  const noise = (shape: readonly [number, number]): Tensor => ({
    shape,
    data: Float32Array.from({ length: shape[0] * shape[1] }, () => 0.3 * random()),
  });
  for (const [key, shape] of weightShapes(parseArchitecture(config))) {
    const layer = /^(.+_proj)\.weight$/.exec(key)?.[1];
    if (layer === undefined) continue;
    const [out = 0, input = 0] = shape;
    tensors.set(`base_model.model.${layer}.lora_A.weight`, noise([rank, input]));
    tensors.set(`base_model.model.${layer}.lora_B.weight`, noise([out, rank]));
  }
  await mkdir(dir, { recursive: true });
  await writeSafetensors(join(dir, "adapter_model.safetensors"), tensors);
  await writeJson(join(dir, "adapter_config.json"), {
    peft_type: "LORA",
    r: rank,
    lora_alpha: 8,
    target_modules: "all-linear",
    bias: "none",
  });
  if (manifest === "none") return;
  await writeJson(join(dir, "manifest.json"), {
    name,
    sha256: {
      "adapter_model.safetensors": await sha256(join(dir, "adapter_model.safetensors")),
      "adapter_config.json": await sha256(join(dir, "adapter_config.json")),
    },
    base_sha256: await sha256(join(modelDir, "model.safetensors")),
  });
}

/** Numbers around 0 with a spread of about 1, the same for the same seed. */
export function randomNumbers(seed: number): () => number {
  let state = seed | 0;
  const uniform = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    return (state >>> 8) / 2 ** 24;
  };
  return () => uniform() + uniform() + uniform() - 1.5;
}

async function sha256(path: string): Promise<string> {
  return createHash("sha256")
    .update(await readFile(path))
    .digest("hex");
}

async function writeJson(path: string, value: unknown): Promise<void> {
  await writeFile(path, `${JSON.stringify(value, null, 2)}\n`);
}

/** The 256 characters that stand for bytes in byte-level BPE, in byte order. */
function byteAlphabet(): string[] {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCodePoint(isPrintable ? byte : next++);
  });
}
