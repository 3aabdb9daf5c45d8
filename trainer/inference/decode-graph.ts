/**
 * The graph that reads prompts and writes answers: a few new tokens of each row against its cached keys and values.
 * One graph with a dynamic number of new tokens serves prefill, chunked prefill and decoding. It holds no state:
 * the cache comes in, the new keys and values go out.
 *
 * Shapes as in `decode-io.ts`, and G query heads a key/value head, W width.
 */

import { FulgurError } from "#shared/errors.ts";
import { float, GraphBuilder, int, ints } from "../engine/onnx/graph.ts";
import type { Architecture, ropeTables } from "../model/architecture.ts";
import type { ServePrecision } from "./config.ts";
import { INPUT, OUTPUT, pastKey, pastValue } from "./decode-io.ts";
import { int8Product } from "./int8-product.ts";
import type { PackedLayer, PackedLinear, PackedWeights } from "./packed-weights.ts";

/** Cosines and sines for as many positions as a sequence may have; the same for all versions. */
export type RopeTables = ReturnType<typeof ropeTables>;

/** What all versions of an endpoint have in common. */
export interface DecodeGraphOptions {
  readonly rope: RopeTables;
  readonly precision: ServePrecision;
}

/** Encodes the decode graph of one policy version. */
export function buildDecodeGraph(
  architecture: Architecture,
  weights: PackedWeights,
  { rope, precision }: DecodeGraphOptions,
): Uint8Array {
  const { width, vocab, headSize, kvHeads, heads } = architecture;
  const graph = new GraphBuilder("decode");
  const tokens = graph.input(INPUT.tokens, "int32", ["B", "S"]);
  const positions = graph.input(INPUT.positions, "int64", ["B", "S"]);
  const mask = graph.input(INPUT.mask, "float32", ["B", 1, 1, "S", "MS"]);
  const split = graph.input(INPUT.split, "int64", [2]);
  const inverseTemperature = graph.input(INPUT.inverseTemperature, "float32", ["B", 1]);
  const half = headSize / 2;
  const shared: Shared = {
    architecture,
    graph,
    precision,
    positions,
    mask,
    split,
    cos: graph.initializer("cos", "float32", [rope.cos.length / half, half], rope.cos),
    sin: graph.initializer("sin", "float32", [rope.sin.length / half, half], rope.sin),
    ones_H: architecture.qkNorm
      ? graph.initializer("ones", "float32", [headSize], new Float32Array(headSize).fill(1))
      : null,
    perHead: [kvHeads, heads / kvHeads, headSize],
  };
  const embedding = graph.initializer("embedding", "float32", [vocab, width], weights.embedding);
  let residual = graph.node("Gather", [embedding, tokens], { axis: int(0) });
  let update: string | null = null;
  const added: string[] = [];
  for (const [index, layer] of weights.layers.entries()) {
    const first = addNorm(shared, residual, update, `attention_norm_${index}`, layer.attentionNorm_W);
    const attention = attend(shared, first.normed, layer, index);
    added.push(attention.key, attention.value);
    const second = addNorm(shared, first.sum, attention.out, `feed_forward_norm_${index}`, layer.feedForwardNorm_W);
    update = feedForward(shared, second.normed, layer, index);
    residual = second.sum;
  }
  // Only the last new token of a row is answered, so the norm and the head see one position.
  const lastOf = (value: string): string =>
    graph.node("Gather", [value, graph.initializer(`last_of_${value}`, "int64", [], BigInt64Array.of(-1n))], {
      axis: int(1),
    });
  const last = addNorm(
    shared,
    lastOf(residual),
    update === null ? null : lastOf(update),
    "final_norm",
    weights.finalNorm_W,
  );
  const logits = linear(shared, last.normed, "head", weights.head);
  const scaled = graph.node("Mul", [logits, inverseTemperature]);
  graph.output(graph.node("Softmax", [scaled], { axis: int(-1) }), "float32", ["B", vocab], OUTPUT.probabilities);
  const joined = graph.node("Concat", added, { axis: int(0) });
  graph.output(joined, "float32", ["planesB", kvHeads, 1, "S", headSize], OUTPUT.added);
  return graph.toBytes();
}

interface Shared {
  readonly architecture: Architecture;
  readonly graph: GraphBuilder;
  readonly precision: ServePrecision;
  readonly positions: string;
  readonly mask: string;
  readonly split: string;
  readonly cos: string;
  readonly sin: string;
  readonly ones_H: string | null;
  /** [KV, G, H] */
  readonly perHead: readonly [number, number, number];
}

/** RMSNorm of value + update; also that sum, which is the residual stream from here on. */
function addNorm(
  { graph, architecture }: Shared,
  value: string,
  update: string | null,
  name: string,
  weight_W: Float32Array,
): { normed: string; sum: string } {
  const weight = graph.initializer(name, "float32", [weight_W.length], weight_W);
  const epsilon = float(architecture.rmsEps);
  if (update === null) {
    const normed = graph.node("SimplifiedLayerNormalization", [value, weight], { epsilon, axis: int(-1) });
    return { normed, sum: value };
  }
  const [normed = "", , , sum = ""] = graph.nodes(
    "com.microsoft.SkipSimplifiedLayerNormalization",
    [update, value, weight],
    4,
    { epsilon },
  );
  return { normed, sum };
}

function attend(
  shared: Shared,
  normed: string,
  layer: PackedLayer,
  index: number,
): { out: string; key: string; value: string } {
  const { graph, architecture, perHead } = shared;
  const { headSize, heads, kvHeads } = architecture;
  const [, groups] = perHead;
  const queryWidth = heads * headSize;
  const keyWidth = kvHeads * headSize;
  const packed = linear(shared, normed, `qkv_${index}`, layer.qkv);
  const [queriesAndKeys = "", values = ""] = graph.nodes(
    "Split",
    [packed, graph.int64s([queryWidth + keyWidth, keyWidth])],
    2,
    { axis: int(-1) },
  );
  const normedHeads = normHeads(shared, queriesAndKeys, layer, index);
  const rotated = graph.node("com.microsoft.RotaryEmbedding", [normedHeads, shared.positions, shared.cos, shared.sin]);
  const [queries = "", keys = ""] = graph.nodes("Split", [rotated, graph.int64s([queryWidth, keyWidth])], 2, {
    axis: int(-1),
  });
  // [B, S, KV·G·H] → [B, KV, G, S, H]: with one new token the transposes move nothing, and each row of scores is
  // one vector-matrix product that reads the cache in place.
  const split = (value: string, group: number): string =>
    graph.node("Transpose", [graph.node("Reshape", [value, graph.int64s([0, 0, kvHeads, group, headSize])])], {
      perm: ints([0, 2, 3, 1, 4]),
    });
  const query = split(queries, groups);
  const key = split(keys, 1);
  const value = split(values, 1);
  const pastShape = ["B", kvHeads, 1, "M", headSize] as const;
  const cachedKeys = graph.input(pastKey(index), "float32", pastShape);
  const cachedValues = graph.input(pastValue(index), "float32", pastShape);
  const transposed = { transB: int(1) };
  const scores = graph.node(
    "Concat",
    [
      graph.node("com.microsoft.FusedMatMul", [query, cachedKeys], transposed),
      graph.node("com.microsoft.FusedMatMul", [query, key], transposed),
    ],
    { axis: int(-1) },
  );
  const weights = graph.node("Softmax", [graph.node("Add", [scores, shared.mask])], { axis: int(-1) });
  const [past = "", fresh = ""] = graph.nodes("Split", [weights, shared.split], 2, { axis: int(-1) });
  const mixed = graph.node("Add", [graph.node("MatMul", [past, cachedValues]), graph.node("MatMul", [fresh, value])]);
  const joined = graph.node("Reshape", [
    graph.node("Transpose", [mixed], { perm: ints([0, 3, 1, 2, 4]) }),
    graph.int64s([0, 0, queryWidth]),
  ]);
  const out = linear(shared, joined, `attention_out_${index}`, layer.attentionOut);
  return { out, key, value };
}

/** Qwen3's RMSNorm of each query and key head; other families have none. */
function normHeads(
  { graph, architecture, ones_H }: Shared,
  queriesAndKeys: string,
  layer: PackedLayer,
  index: number,
): string {
  const { heads, kvHeads, headSize, rmsEps } = architecture;
  if (layer.qkNorm === null || ones_H === null) return queriesAndKeys;
  const perHead = graph.node("Reshape", [queriesAndKeys, graph.int64s([0, 0, heads + kvHeads, headSize])]);
  const normed = graph.node("SimplifiedLayerNormalization", [perHead, ones_H], {
    epsilon: float(rmsEps),
    axis: int(-1),
  });
  const weight = graph.initializer(`qk_norm_${index}`, "float32", [heads + kvHeads, headSize], layer.qkNorm);
  return graph.node("Reshape", [
    graph.node("Mul", [normed, weight]),
    graph.int64s([0, 0, (heads + kvHeads) * headSize]),
  ]);
}

function feedForward(shared: Shared, normed: string, layer: PackedLayer, index: number): string {
  const { graph, architecture } = shared;
  const { feedForward: inner } = architecture;
  const gateUp = linear(shared, normed, `gate_up_${index}`, layer.gateUp);
  const [gate = "", up = ""] = graph.nodes("Split", [gateUp, graph.int64s([inner, inner])], 2, { axis: int(-1) });
  // QuickGelu is x · sigmoid(alpha · x): with alpha 1 it is SiLU in one pass.
  const activated = graph.node("Mul", [graph.node("com.microsoft.QuickGelu", [gate], { alpha: float(1) }), up]);
  return linear(shared, activated, `down_${index}`, layer.down);
}

function linear({ graph, precision }: Shared, input: string, name: string, packed: PackedLinear): string {
  const { inputs, outputs, bias, delta } = packed;
  if (delta !== null) throw new FulgurError("ERR_INTERNAL", `The adapter of "${name}" was not merged.`);
  const product =
    precision === "int8"
      ? int8Product(graph, input, name, packed)
      : graph.node("MatMul", [input, graph.initializer(name, "float32", [inputs, outputs], packed.weight)]);
  if (bias === null) return product;
  return graph.node("Add", [product, graph.initializer(`${name}_bias`, "float32", [outputs], bias)]);
}
