/**
 * A policy version's weights in the form that the decode graph multiplies with: every linear layer transposed to
 * [in, out], q‖k‖v and gate‖up side by side, the attention scale inside the query weights.
 */

import { FulgurError } from "#shared/errors.ts";
import type { Architecture } from "../model/architecture.ts";
import type { Tensor } from "../model/safetensors.ts";

/** A linear layer, or several side by side: x · (weight + a · b) + bias. */
export interface PackedLinear {
  readonly inputs: number;
  readonly outputs: number;
  /** [in, out] */
  readonly weight: Float32Array;
  /** [out] */
  readonly bias: Float32Array | null;
  /** What an adapter adds, until it is merged; its scale is in b. */
  readonly delta: PackedDelta | null;
}

/** A low-rank change of a packed layer: a [in, rank] and b [rank, out]. */
export interface PackedDelta {
  readonly rank: number;
  readonly a: Float32Array;
  readonly b: Float32Array;
}

/** One decoder layer; W is the width. */
export interface PackedLayer {
  readonly attentionNorm_W: Float32Array;
  readonly qkv: PackedLinear;
  /** [heads + kvHeads, headSize], absent without q/k norm. */
  readonly qkNorm: Float32Array | null;
  readonly attentionOut: PackedLinear;
  readonly feedForwardNorm_W: Float32Array;
  readonly gateUp: PackedLinear;
  readonly down: PackedLinear;
}

/** All weights of a version. */
export interface PackedWeights {
  /** [vocab, W] */
  readonly embedding: Float32Array;
  readonly layers: readonly PackedLayer[];
  readonly finalNorm_W: Float32Array;
  readonly head: PackedLinear;
}

/** A LoRA adapter of one linear layer: W + scale · B·A. */
export interface LoraDelta {
  /** [rank, in] */
  readonly a: Tensor;
  /** [out, rank] */
  readonly b: Tensor;
  readonly scale: number;
}

/** Packs Hugging Face weights. @param weights by Hugging Face name, linear ones [out, in] */
export function packWeights(architecture: Architecture, weights: ReadonlyMap<string, Tensor>): PackedWeights {
  const vector = (name: string): Float32Array => {
    const tensor = weights.get(name);
    if (tensor === undefined) throw new FulgurError("ERR_MODEL", `The checkpoint has no weight "${name}".`);
    return tensor.data;
  };
  const pack = ({ inputs, parts, hasBias }: LinearSpec): PackedLinear => {
    const outputs = widthOf(parts);
    const weight = new Float32Array(inputs * outputs);
    const bias = hasBias ? new Float32Array(outputs) : null;
    let column = 0;
    for (const { name, source, outputs: width, factor } of parts) {
      transposeInto(weight, { stride: outputs, column, inputs, factor }, vector(source ?? `${name}.weight`));
      if (bias !== null) for (const [i, value] of vector(`${name}.bias`).entries()) bias[column + i] = factor * value;
      column += width;
    }
    return { inputs, outputs, weight, bias, delta: null };
  };
  const { heads, kvHeads, headSize } = architecture;
  return {
    embedding: vector("model.embed_tokens.weight"),
    layers: Array.from({ length: architecture.layers }, (_, index): PackedLayer => {
      const at = `model.layers.${index}`;
      const linear = layerLinears(architecture, index);
      return {
        attentionNorm_W: vector(`${at}.input_layernorm.weight`),
        qkv: pack(linear.qkv),
        qkNorm: architecture.qkNorm
          ? repeatNorms(
              vector(`${at}.self_attn.q_norm.weight`),
              heads,
              1 / Math.sqrt(headSize),
              vector(`${at}.self_attn.k_norm.weight`),
              kvHeads,
            )
          : null,
        attentionOut: pack(linear.attentionOut),
        feedForwardNorm_W: vector(`${at}.post_attention_layernorm.weight`),
        gateUp: pack(linear.gateUp),
        down: pack(linear.down),
      };
    }),
    finalNorm_W: vector("model.norm.weight"),
    head: pack(headLinear(architecture)),
  };
}

/**
 * The base weights, shared and not copied, with an adapter beside them.
 * @param lora by the name of the layer whose `.weight` it changes, such as `model.layers.0.self_attn.q_proj`
 */
export function withLora(
  architecture: Architecture,
  base: PackedWeights,
  lora: ReadonlyMap<string, LoraDelta>,
): PackedWeights {
  const change = (linear: PackedLinear, spec: LinearSpec): PackedLinear => ({
    ...linear,
    delta: packDelta(spec, lora),
  });
  return {
    ...base,
    layers: base.layers.map((layer, index) => {
      const linear = layerLinears(architecture, index);
      return {
        ...layer,
        qkv: change(layer.qkv, linear.qkv),
        attentionOut: change(layer.attentionOut, linear.attentionOut),
        gateUp: change(layer.gateUp, linear.gateUp),
        down: change(layer.down, linear.down),
      };
    }),
    head: change(base.head, headLinear(architecture)),
  };
}

/** Which Hugging Face layers lie side by side in a packed one. */
interface LinearSpec {
  readonly inputs: number;
  readonly hasBias: boolean;
  readonly parts: readonly {
    readonly name: string;
    /** Name of the weight where it is not `name`.weight. */
    readonly source?: string;
    readonly outputs: number;
    /** What weight and bias are multiplied by. */
    readonly factor: number;
  }[];
}

function layerLinears(
  architecture: Architecture,
  index: number,
): Readonly<Record<"qkv" | "attentionOut" | "gateUp" | "down", LinearSpec>> {
  const { width, heads, kvHeads, headSize, feedForward, attentionBias, outputBias, feedForwardBias } = architecture;
  const attention = `model.layers.${index}.self_attn`;
  const mlp = `model.layers.${index}.mlp`;
  // q/k norm would undo a scale in the weights, so there it goes into the norm.
  const queryScale = architecture.qkNorm ? 1 : 1 / Math.sqrt(headSize);
  const part = (name: string, outputs: number, factor = 1): LinearSpec["parts"][number] => ({ name, outputs, factor });
  return {
    qkv: {
      inputs: width,
      hasBias: attentionBias,
      parts: [
        part(`${attention}.q_proj`, heads * headSize, queryScale),
        part(`${attention}.k_proj`, kvHeads * headSize),
        part(`${attention}.v_proj`, kvHeads * headSize),
      ],
    },
    attentionOut: { inputs: heads * headSize, hasBias: outputBias, parts: [part(`${attention}.o_proj`, width)] },
    gateUp: {
      inputs: width,
      hasBias: feedForwardBias,
      parts: [part(`${mlp}.gate_proj`, feedForward), part(`${mlp}.up_proj`, feedForward)],
    },
    down: { inputs: feedForward, hasBias: feedForwardBias, parts: [part(`${mlp}.down_proj`, width)] },
  };
}

function headLinear({ width, vocab, tied }: Architecture): LinearSpec {
  const head = { name: "lm_head", outputs: vocab, factor: 1 };
  const parts = [tied ? { ...head, source: "model.embed_tokens.weight" } : head];
  return { inputs: width, hasBias: false, parts };
}

/** The adapters of layers that lie side by side, as one of their joint rank: b is block-diagonal. */
function packDelta({ inputs, parts }: LinearSpec, lora: ReadonlyMap<string, LoraDelta>): PackedDelta | null {
  const ranks = parts.map(({ name }) => lora.get(name)?.a.shape[0] ?? 0);
  const rank = ranks.reduce((sum, each) => sum + each, 0);
  if (rank === 0) return null;
  const outputs = widthOf(parts);
  const a = new Float32Array(inputs * rank);
  const b = new Float32Array(rank * outputs);
  let column = 0;
  let row = 0;
  for (const [i, { name, outputs: width, factor }] of parts.entries()) {
    const delta = lora.get(name);
    const own = ranks[i] ?? 0;
    if (delta !== undefined) {
      transposeInto(a, { stride: rank, column: row, inputs, factor: 1 }, delta.a.data);
      const rows = b.subarray(row * outputs);
      transposeInto(rows, { stride: outputs, column, inputs: own, factor: factor * delta.scale }, delta.b.data);
    }
    column += width;
    row += own;
  }
  return { rank, a, b };
}

function widthOf(parts: LinearSpec["parts"]): number {
  return parts.reduce((sum, { outputs }) => sum + outputs, 0);
}

/** Writes a [out, inputs] matrix, times a factor, as columns column … column+out−1 of an [inputs, stride] one. */
function transposeInto(
  target: Float32Array,
  place: { readonly stride: number; readonly column: number; readonly inputs: number; readonly factor: number },
  source: Float32Array,
): void {
  const { stride, column, inputs, factor } = place;
  const outputs = source.length / inputs;
  // Tiles keep both sides in the cache: a plain loop is several times slower on wide layers.
  const tile = 32;
  for (let o0 = 0; o0 < outputs; o0 += tile) {
    const o1 = Math.min(o0 + tile, outputs);
    for (let i0 = 0; i0 < inputs; i0 += tile) {
      const i1 = Math.min(i0 + tile, inputs);
      for (let i = i0; i < i1; i++) {
        const at = i * stride + column;
        for (let o = o0; o < o1; o++) target[at + o] = factor * (source[o * inputs + i] ?? 0);
      }
    }
  }
}

function repeatNorms(
  queryNorm: Float32Array,
  heads: number,
  queryScale: number,
  keyNorm: Float32Array,
  kvHeads: number,
): Float32Array {
  const headSize = queryNorm.length;
  const rows = new Float32Array((heads + kvHeads) * headSize);
  for (let head = 0; head < heads + kvHeads; head++) {
    const isQuery = head < heads;
    const norm = isQuery ? queryNorm : keyNorm;
    for (let i = 0; i < headSize; i++) rows[head * headSize + i] = (norm[i] ?? 0) * (isQuery ? queryScale : 1);
  }
  return rows;
}
