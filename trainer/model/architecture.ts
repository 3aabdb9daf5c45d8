/** The shape of a Hugging Face decoder, read from its `config.json`. It knows no weights and no runtime. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";

/** How rotary frequencies are stretched beyond the trained context. */
export type RopeScaling =
  | { readonly type: "linear"; readonly factor: number }
  | {
      readonly type: "llama3";
      readonly factor: number;
      readonly lowFrequencyFactor: number;
      readonly highFrequencyFactor: number;
      readonly originalContextTokens: number;
    };

/** Everything that decides the graph of a Llama, Qwen2 or Qwen3 decoder. */
export interface Architecture {
  readonly family: "llama" | "qwen2" | "qwen3";
  readonly layers: number;
  /** Residual width. */
  readonly width: number;
  /** Query heads. */
  readonly heads: number;
  /** Key and value heads; divides `heads`. */
  readonly kvHeads: number;
  readonly headSize: number;
  /** Inner width of the gated feed-forward. */
  readonly feedForward: number;
  readonly vocab: number;
  readonly contextTokens: number;
  readonly ropeTheta: number;
  readonly ropeScaling: RopeScaling | null;
  readonly rmsEps: number;
  /** The output head is the embedding matrix. */
  readonly tied: boolean;
  /** Bias on q, k and v. */
  readonly attentionBias: boolean;
  /** Bias on the attention output projection. */
  readonly outputBias: boolean;
  /** Bias on gate, up and down. */
  readonly feedForwardBias: boolean;
  /** RMSNorm of each query and key head before the rotation. */
  readonly qkNorm: boolean;
  readonly bosTokenId: number | null;
  readonly eosTokenIds: readonly number[];
  readonly padTokenId: number | null;
}

const count = z.int().positive();
const ropeSchema = z
  .looseObject({
    rope_type: z.string().optional(),
    type: z.string().optional(),
    rope_theta: z.number().positive().optional(),
    factor: z.number().positive().optional(),
    low_freq_factor: z.number().positive().optional(),
    high_freq_factor: z.number().positive().optional(),
    original_max_position_embeddings: count.optional(),
  })
  .nullish();

const configSchema = z.looseObject({
  model_type: z.string(),
  hidden_size: count,
  intermediate_size: count,
  num_hidden_layers: count,
  num_attention_heads: count,
  num_key_value_heads: count.nullish(),
  head_dim: count.nullish(),
  vocab_size: count,
  max_position_embeddings: count.default(2048),
  hidden_act: z.string().default("silu"),
  rms_norm_eps: z.number().positive().default(1e-6),
  rope_theta: z.number().positive().nullish(),
  rope_scaling: ropeSchema,
  rope_parameters: ropeSchema,
  tie_word_embeddings: z.boolean().default(false),
  attention_bias: z.boolean().nullish(),
  mlp_bias: z.boolean().nullish(),
  use_sliding_window: z.boolean().nullish(),
  bos_token_id: z.int().nonnegative().nullish(),
  eos_token_id: z.union([z.int().nonnegative(), z.array(z.int().nonnegative())]).nullish(),
  pad_token_id: z.int().nullish(),
});

const FAMILIES = ["llama", "qwen2", "qwen3"] as const;

/**
 * Turns the contents of a `config.json` into an architecture.
 * @param config the parsed JSON
 * @param source what to call it in errors, usually its path
 * @throws FulgurError ERR_MODEL when the family or a feature is not supported, or a field is missing
 */
export function parseArchitecture(config: unknown, source = "config.json"): Architecture {
  const parsed = configSchema.safeParse(config);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new FulgurError(
      "ERR_MODEL",
      `${source} is not a decoder config: ${issue ? `${issue.path.join(".") || "the file"}: ${issue.message}` : "unreadable"}. Give a Hugging Face folder of a Llama, Qwen2 or Qwen3 model.`,
    );
  }
  const c = parsed.data;
  const family = FAMILIES.find((name) => name === c.model_type);
  if (family === undefined) {
    throw new FulgurError(
      "ERR_MODEL",
      `${source} has model_type "${c.model_type}", which is not supported; use one of ${FAMILIES.join(", ")}.`,
    );
  }
  const refuse = (what: string): never => {
    throw new FulgurError("ERR_MODEL", `${source}: ${what}`);
  };
  const kvHeads = c.num_key_value_heads ?? c.num_attention_heads;
  if (c.num_attention_heads % kvHeads !== 0) {
    refuse(`num_attention_heads ${c.num_attention_heads} is not a multiple of num_key_value_heads ${kvHeads}.`);
  }
  // Qwen3 fixes its head size at 128 unless the config says otherwise; the others derive it from the width.
  const headSize = c.head_dim ?? (family === "qwen3" ? 128 : c.hidden_size / c.num_attention_heads);
  if (!Number.isInteger(headSize) || headSize % 2 !== 0) {
    refuse(
      `head size ${headSize} must be an even whole number (set head_dim, or a hidden_size that the heads divide).`,
    );
  }
  if (c.hidden_act !== "silu") refuse(`hidden_act "${c.hidden_act}" is not supported; only silu is.`);
  if (c.use_sliding_window === true) refuse("use_sliding_window is not supported; set it to false.");
  const rope = c.rope_parameters ?? c.rope_scaling ?? null;
  const attentionBias = family === "qwen2" ? true : (c.attention_bias ?? false);
  const eos = c.eos_token_id ?? [];
  return {
    family,
    layers: c.num_hidden_layers,
    width: c.hidden_size,
    heads: c.num_attention_heads,
    kvHeads,
    headSize,
    feedForward: c.intermediate_size,
    vocab: c.vocab_size,
    contextTokens: c.max_position_embeddings,
    ropeTheta: c.rope_parameters?.rope_theta ?? c.rope_theta ?? 10_000,
    ropeScaling: parseRopeScaling(rope, c.max_position_embeddings, refuse),
    rmsEps: c.rms_norm_eps,
    tied: c.tie_word_embeddings,
    attentionBias,
    outputBias: family === "qwen2" ? false : attentionBias,
    feedForwardBias: family === "llama" ? (c.mlp_bias ?? false) : false,
    qkNorm: family === "qwen3",
    bosTokenId: c.bos_token_id ?? null,
    eosTokenIds: typeof eos === "number" ? [eos] : eos,
    padTokenId: c.pad_token_id ?? null,
  };
}

/**
 * Reads `config.json` of a model folder.
 * @throws FulgurError ERR_MODEL when it is missing, is not JSON, or is not supported
 */
export async function readArchitecture(modelDir: string): Promise<Architecture> {
  const path = join(modelDir, "config.json");
  let config: unknown;
  try {
    config = JSON.parse(await readFile(path, "utf8"));
  } catch (cause) {
    throw new FulgurError(
      "ERR_MODEL",
      `Cannot read ${path} (${messageOf(cause)}). Give a Hugging Face model folder with a config.json.`,
      { cause },
    );
  }
  return parseArchitecture(config, path);
}

/**
 * Rotary frequencies after scaling.
 * @returns inverseFrequencies_D2 radians per position, one per pair of head dimensions
 * @see Su et al. 2021, arXiv:2104.09864; Llama 3.1's `rope_scaling` for the wavelength-dependent stretch
 */
export function ropeInverseFrequencies(architecture: Architecture): Float64Array {
  const { headSize, ropeTheta, ropeScaling } = architecture;
  const half = headSize / 2;
  return Float64Array.from({ length: half }, (_, i) => {
    const frequency = ropeTheta ** (-i / half);
    if (ropeScaling === null) return frequency;
    if (ropeScaling.type === "linear") return frequency / ropeScaling.factor;
    const { factor, lowFrequencyFactor, highFrequencyFactor, originalContextTokens } = ropeScaling;
    const wavelength = (2 * Math.PI) / frequency;
    if (wavelength > originalContextTokens / lowFrequencyFactor) return frequency / factor;
    if (wavelength < originalContextTokens / highFrequencyFactor) return frequency;
    const smooth =
      (originalContextTokens / wavelength - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
    return ((1 - smooth) * frequency) / factor + smooth * frequency;
  });
}

/**
 * Cosines and sines of the rotation at positions 0 … positions−1.
 * @returns two tables [positions, headSize / 2]
 */
export function ropeTables(
  architecture: Architecture,
  positions: number,
): { readonly cos: Float32Array; readonly sin: Float32Array } {
  const frequencies = ropeInverseFrequencies(architecture);
  const half = frequencies.length;
  const cos = new Float32Array(positions * half);
  const sin = new Float32Array(positions * half);
  // transformers multiplies position and frequency in float32; the rounding grows with position, so do the same.
  const frequencies32 = Float32Array.from(frequencies);
  for (let position = 0; position < positions; position++) {
    for (const [i, frequency] of frequencies32.entries()) {
      const angle = Math.fround(position * frequency);
      cos[position * half + i] = Math.cos(angle);
      sin[position * half + i] = Math.sin(angle);
    }
  }
  return { cos, sin };
}

/**
 * Every weight of the architecture under its Hugging Face name, in file order.
 * Linear weights are [out, in], as PyTorch stores them.
 */
export function weightShapes(architecture: Architecture): Map<string, readonly number[]> {
  const a = architecture;
  const queryWidth = a.heads * a.headSize;
  const kvWidth = a.kvHeads * a.headSize;
  const shapes = new Map<string, readonly number[]>();
  const linear = (name: string, out: number, input: number, bias: boolean): void => {
    shapes.set(`${name}.weight`, [out, input]);
    if (bias) shapes.set(`${name}.bias`, [out]);
  };
  shapes.set("model.embed_tokens.weight", [a.vocab, a.width]);
  for (let layer = 0; layer < a.layers; layer++) {
    const at = `model.layers.${layer}`;
    shapes.set(`${at}.input_layernorm.weight`, [a.width]);
    linear(`${at}.self_attn.q_proj`, queryWidth, a.width, a.attentionBias);
    linear(`${at}.self_attn.k_proj`, kvWidth, a.width, a.attentionBias);
    linear(`${at}.self_attn.v_proj`, kvWidth, a.width, a.attentionBias);
    linear(`${at}.self_attn.o_proj`, a.width, queryWidth, a.outputBias);
    if (a.qkNorm) {
      shapes.set(`${at}.self_attn.q_norm.weight`, [a.headSize]);
      shapes.set(`${at}.self_attn.k_norm.weight`, [a.headSize]);
    }
    shapes.set(`${at}.post_attention_layernorm.weight`, [a.width]);
    linear(`${at}.mlp.gate_proj`, a.feedForward, a.width, a.feedForwardBias);
    linear(`${at}.mlp.up_proj`, a.feedForward, a.width, a.feedForwardBias);
    linear(`${at}.mlp.down_proj`, a.width, a.feedForward, a.feedForwardBias);
  }
  shapes.set("model.norm.weight", [a.width]);
  if (!a.tied) shapes.set("lm_head.weight", [a.vocab, a.width]);
  return shapes;
}

function parseRopeScaling(
  rope: z.infer<typeof ropeSchema>,
  contextTokens: number,
  refuse: (what: string) => never,
): RopeScaling | null {
  if (rope === null || rope === undefined) return null;
  const type = rope.rope_type ?? rope.type ?? "default";
  if (type === "default") return null;
  const needed = (field: string, value: number | undefined): number =>
    value ?? refuse(`rope scaling "${type}" needs ${field}.`);
  if (type === "linear") return { type, factor: needed("factor", rope.factor) };
  if (type === "llama3") {
    return {
      type,
      factor: needed("factor", rope.factor),
      lowFrequencyFactor: needed("low_freq_factor", rope.low_freq_factor),
      highFrequencyFactor: needed("high_freq_factor", rope.high_freq_factor),
      originalContextTokens: rope.original_max_position_embeddings ?? contextTokens,
    };
  }
  return refuse(`rope scaling "${type}" is not supported; only linear and llama3 are.`);
}
