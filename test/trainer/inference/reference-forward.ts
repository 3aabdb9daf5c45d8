/**
 * The textbook forward pass of a Llama, Qwen2 or Qwen3 decoder: loops in double precision, no cache, no batching,
 * no fused anything. Slow and obviously right: what the decode graph is compared with.
 */

import { type Architecture, ropeInverseFrequencies } from "../../../trainer/model/architecture.ts";
import type { Tensor } from "../../../trainer/model/safetensors.ts";

/** Log-probabilities of the next token after each position, [T][vocab]. */
export function referenceLogprobs(
  architecture: Architecture,
  weights: ReadonlyMap<string, Tensor>,
  tokens: readonly number[],
): number[][] {
  const { width, heads, kvHeads, headSize, layers, tied, rmsEps } = architecture;
  const frequencies = ropeInverseFrequencies(architecture);
  const data = (name: string): Float32Array => {
    const tensor = weights.get(name);
    if (tensor === undefined) throw new Error(`no ${name}`);
    return tensor.data;
  };
  const linear = (x: number[], layer: string): number[] => {
    const weight = data(`${layer}.weight`);
    const bias = weights.get(`${layer}.bias`)?.data;
    return Array.from({ length: weight.length / x.length }, (_, o) =>
      x.reduce((sum, value, i) => sum + value * at(weight, o * x.length + i), bias === undefined ? 0 : at(bias, o)),
    );
  };
  const norm = (x: readonly number[], weight: Float32Array): number[] => {
    const mean = x.reduce((sum, value) => sum + value * value, 0) / x.length;
    return x.map((value, i) => (value / Math.sqrt(mean + rmsEps)) * at(weight, i));
  };
  const head = (x: readonly number[], h: number): number[] => x.slice(h * headSize, (h + 1) * headSize);
  const rotate = (x: readonly number[], position: number): number[] => {
    const half = headSize / 2;
    return x.map((value, i) => {
      const angle = position * at(frequencies, i % half);
      const partner = i < half ? -at(x, i + half) : at(x, i - half);
      return value * Math.cos(angle) + partner * Math.sin(angle);
    });
  };
  const embedding = data("model.embed_tokens.weight");
  let hidden = tokens.map((token) => Array.from(embedding.subarray(token * width, (token + 1) * width)));
  for (let layer = 0; layer < layers; layer++) {
    const name = `model.layers.${layer}`;
    const normed = hidden.map((x) => norm(x, data(`${name}.input_layernorm.weight`)));
    const project = (what: "q" | "k", count: number): number[][][] =>
      normed.map((x, position) => {
        const all = linear(x, `${name}.self_attn.${what}_proj`);
        return Array.from({ length: count }, (_, h) => {
          const one = head(all, h);
          const weight = architecture.qkNorm ? data(`${name}.self_attn.${what}_norm.weight`) : null;
          return rotate(weight === null ? one : norm(one, weight), position);
        });
      });
    const queries = project("q", heads);
    const keys = project("k", kvHeads);
    const values = normed.map((x) => linear(x, `${name}.self_attn.v_proj`));
    hidden = hidden.map((x, t) => {
      const mixed = Array.from({ length: heads }, (_, h) => {
        const group = Math.floor((h * kvHeads) / heads);
        const scores = keys
          .slice(0, t + 1)
          .map((key) => dot(get(get(queries, t), h), get(key, group)) / Math.sqrt(headSize));
        const attention = softmax(scores);
        return Array.from({ length: headSize }, (_, i) =>
          attention.reduce((sum, a, j) => sum + a * at(get(values, j), group * headSize + i), 0),
        );
      }).flat();
      return add(x, linear(mixed, `${name}.self_attn.o_proj`));
    });
    hidden = hidden.map((x) => {
      const inner = norm(x, data(`${name}.post_attention_layernorm.weight`));
      const up = linear(inner, `${name}.mlp.up_proj`);
      const gate = linear(inner, `${name}.mlp.gate_proj`).map((g, i) => (g / (1 + Math.exp(-g))) * at(up, i));
      return add(x, linear(gate, `${name}.mlp.down_proj`));
    });
  }
  return hidden.map((x) => {
    const last = norm(x, data("model.norm.weight"));
    const logits = linear(last, tied ? "model.embed_tokens" : "lm_head");
    return softmax(logits).map(Math.log);
  });
}

/** Index of the greatest value. */
export function argmax(values: readonly number[]): number {
  return values.reduce((best, value, i) => (value > at(values, best) ? i : best), 0);
}

function softmax(values: readonly number[]): number[] {
  const most = Math.max(...values);
  const exponentials = values.map((value) => Math.exp(value - most));
  const total = exponentials.reduce((sum, value) => sum + value, 0);
  return exponentials.map((value) => value / total);
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, i) => sum + value * at(b, i), 0);
}

function add(a: readonly number[], b: readonly number[]): number[] {
  return a.map((value, i) => value + at(b, i));
}

function at(values: ArrayLike<number>, index: number): number {
  const value = values[index];
  if (value === undefined) throw new RangeError(`no index ${index}`);
  return value;
}

function get<T>(values: readonly T[], index: number): T {
  const value = values[index];
  if (value === undefined) throw new RangeError(`no index ${index}`);
  return value;
}
