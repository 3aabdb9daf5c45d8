/**
 * The graph of a Llama, Qwen2 or Qwen3 decoder: token ids in, scores of the chosen targets out, and for
 * training the gradient of every trained weight. B samples of T tokens, right-padded: under a causal mask no
 * real token sees padding, and padding has no target, so it needs no mask of its own.
 */

import { FulgurError } from "#shared/errors.ts";
import type { Architecture } from "../../model/architecture.ts";
import type { Tensor } from "../../model/safetensors.ts";
import { linearPath, loraName } from "../lora.ts";
import { VALUE_BIAS, VALUE_WEIGHT } from "../value-head.ts";
import { type OperationAttributes, Tape, type Value } from "./autodiff.ts";
import { GraphBuilder } from "./graph.ts";

/** Which passes a graph holds. `backward+entropy` also takes cotangents of the entropy. */
export type Pass = "score" | "backward" | "backward+entropy";

/** Blocks that attention cuts time into; a batch has at least as many tokens in a row. More save little and cost nodes. */
export const ATTENTION_BLOCKS = 4;

/** What a decoder graph is built from. */
export interface DecoderGraphOptions {
  readonly architecture: Architecture;
  readonly pass: Pass;
  readonly temperature: number;
  /** Trained weights by name and shape; they are graph inputs under these names. A value head among them gives values. */
  readonly trained: ReadonlyMap<string, readonly number[]>;
  /** The other weights; they are constants of the graph. */
  readonly frozen: ReadonlyMap<string, Tensor>;
  /** What the adapters' output is multiplied by; null without adapters. */
  readonly loraScale: number | null;
}

/** An encoded graph and the names of its outputs. */
export interface DecoderGraph {
  readonly bytes: Uint8Array;
  readonly logprobs: string;
  readonly entropy: string;
  /** Null without a value head. */
  readonly values: string | null;
  /** Trained weight → output that holds its gradient. The embedding's holds only what comes through a tied head. */
  readonly gradients: ReadonlyMap<string, string>;
  /** Output with ∂L/∂(embedded token), [B·T, width]; null where the embedding is not trained. */
  readonly embedded: string | null;
}

/**
 * Builds the graph. Its inputs, beside the trained weights:
 * `tokens` int64 [B, T]; `rows` int64 [M, 1], the flat index b·T + t − 1 of the position before each target;
 * `targets` int64 [M, 1]; `mask` float [T·G, T], 0 where a query may look and −∞-like elsewhere;
 * `bounds` int64 [ATTENTION_BLOCKS + 1], where attention cuts time, rising from 0 to T;
 * `cos` and `sin` float [≥ T, D / 2]; and for backward `dLogprobs` [M, 1], `dEntropy` [M, 1] and, with
 * a value head, `dValues` [M, 1].
 */
export function buildDecoderGraph(options: DecoderGraphOptions): DecoderGraph {
  const { architecture: a, pass, temperature, trained, frozen } = options;
  const graph = new GraphBuilder(`decoder-${pass}`);
  const tape = new Tape(graph);
  const weights = new Map<string, Value>();
  const shapeOf = (name: string): readonly number[] | undefined => trained.get(name) ?? frozen.get(name)?.shape;

  const weight = (name: string): Value => {
    const known = weights.get(name);
    if (known !== undefined) return known;
    const trainedShape = trained.get(name);
    const constant = frozen.get(name);
    let value: Value;
    if (trainedShape !== undefined) {
      value = graph.input(name, "float32", trainedShape);
      if (pass !== "score") tape.watch(value);
    } else if (constant !== undefined) {
      value = graph.initializer(name, "float32", constant.shape, constant.data);
    } else {
      throw new FulgurError("ERR_INTERNAL", `The graph needs the weight "${name}", which was not given.`);
    }
    weights.set(name, value);
    return value;
  };
  const rowsOf = (names: readonly string[]): OperationAttributes =>
    Object.fromEntries(names.map((name, i) => [`rows${i}`, shapeOf(name)?.[0] ?? 0]));
  const stacked = (names: readonly string[]): Value =>
    names.length === 1 && names[0] !== undefined
      ? weight(names[0])
      : tape.one("concatRows", names.map(weight), rowsOf(names));

  /** A factor of an adapter; a constant zero where a layer shares its product with adapted ones but has none itself. */
  const factor = (name: string, shape: readonly [number, number]): Value => {
    if (trained.has(name) || weights.has(name)) return weight(name);
    const zero = graph.initializer(name, "float32", shape, new Float32Array(shape[0] * shape[1]));
    weights.set(name, zero);
    return zero;
  };

  interface LinearOptions {
    /** Paths of the linear layers, whose outputs are put side by side. */
    readonly paths: readonly string[];
    /** Gain of the norm that made x, not yet applied to it; "" for none. */
    readonly gain?: Value;
    readonly bias: boolean;
    /** Added to the result. */
    readonly residual?: Value;
  }
  const linear = (x: Value, { paths, gain = "", bias, residual = "" }: LinearOptions): Value => {
    const scaled = (w: Value): Value => (gain === "" ? w : tape.one("scaleColumns", [w, gain]));
    const biasValue = bias ? stacked(paths.map((path) => `${path}.bias`)) : "";
    const addend =
      residual !== "" && biasValue !== "" ? tape.one("addBias", [residual, biasValue]) : residual || biasValue;
    const names = paths.map((path) => `${path}.weight`);
    const outs = names.map((name) => shapeOf(name)?.[0] ?? 0);
    const outputs = outs.reduce((sum, out) => sum + out, 0);
    const inputs = shapeOf(names[0] ?? "")?.[1] ?? 0;
    const attributes = { inputs, outputs, bias: Number(residual === "" && biasValue !== "") };
    const base = tape.one("linear", [x, scaled(stacked(names)), addend], attributes);

    const adapted = paths.filter((path) => trained.has(loraName(path, "A")));
    const [first] = adapted;
    if (options.loraScale === null || first === undefined) return base;
    const [rank = 0] = trained.get(loraName(first, "A")) ?? [];
    const downs = paths.map((path) => factor(loraName(path, "A"), [rank, inputs]));
    const ups = paths.map((path, i) => factor(loraName(path, "B"), [outs[i] ?? 0, rank]));
    const sameRank = Object.fromEntries(paths.map((_, i) => [`rows${i}`, rank]));
    const outRows = Object.fromEntries(outs.map((out, i) => [`rows${i}`, out]));
    const down = paths.length === 1 ? (downs[0] ?? "") : tape.one("concatRows", downs, sameRank);
    const up = paths.length === 1 ? (ups[0] ?? "") : tape.one("blockDiagonal", ups, { ...outRows, columns: rank });
    const ranks = paths.length * rank;
    const inner = tape.one("linear", [x, scaled(down)], { inputs, outputs: ranks });
    return tape.one("linear", [inner, up, base], { inputs: ranks, outputs, scale: options.loraScale });
  };

  const tokens = graph.input("tokens", "int64", ["batch", "time"]);
  const rows = graph.input("rows", "int64", ["targets", 1]);
  const targets = graph.input("targets", "int64", ["targets", 1]);
  const mask = graph.input("mask", "float32", ["timeGroup", "time"]);
  const bounds = graph.input("bounds", "int64", [ATTENTION_BLOCKS + 1]);
  const cos = graph.input("cos", "float32", ["positions", a.headSize / 2]);
  const sin = graph.input("sin", "float32", ["positions", a.headSize / 2]);

  const batchTime = graph.node("Shape", [tokens]);
  const flatTokens = graph.node("Reshape", [tokens, graph.int64s([-1])]);
  const embedding = "model.embed_tokens.weight";
  const embedded = graph.node("Gather", [weight(embedding), flatTokens]);
  const trainsEmbedding = pass !== "score" && trained.has(embedding);
  if (trainsEmbedding) tape.watch(embedded);

  const group = a.heads / a.kvHeads;
  const queryColumns = a.heads * a.headSize;
  const keyColumns = a.kvHeads * a.headSize;
  const queryHeads = { kvHeads: a.kvHeads, group, headSize: a.headSize };
  const keyHeads = { ...queryHeads, group: 1 };
  const norm = { epsilon: a.rmsEps, size: a.width };
  const headNorm = (x: Value, columns: number, gain: Value): Value => {
    const rows = tape.one("reshapeColumns", [x], { from: columns, to: a.headSize });
    const normed = tape.one("rmsNorm", [rows, gain], { epsilon: a.rmsEps, size: a.headSize });
    return tape.one("reshapeColumns", [normed], { from: a.headSize, to: columns });
  };
  let x = embedded;
  for (let layer = 0; layer < a.layers; layer++) {
    const at = `model.layers.${layer}`;
    const path = (name: string): string => linearPath(layer, name);

    const attentionIn = tape.one("rmsNorm", [x], norm);
    const qkv = linear(attentionIn, {
      paths: [path("q_proj"), path("k_proj"), path("v_proj")],
      gain: weight(`${at}.input_layernorm.weight`),
      bias: a.attentionBias,
    });
    const [queries = "", keys = "", values = ""] = tape.all("splitColumns", [qkv], {
      queries: queryColumns,
      keys: keyColumns,
      values: keyColumns,
    });
    const rotated = (heads: Value, columns: number, normName: string): Value => {
      const normed = a.qkNorm ? headNorm(heads, columns, weight(`${at}.self_attn.${normName}.weight`)) : heads;
      return tape.one("rope", [normed, cos, sin, batchTime], { columns });
    };
    const q = tape.one("toHeads", [rotated(queries, queryColumns, "q_norm"), batchTime], queryHeads);
    const k = tape.one("toHeads", [rotated(keys, keyColumns, "k_norm"), batchTime], keyHeads);
    const v = tape.one("toHeads", [values, batchTime], keyHeads);
    const mixed = tape.one("attend", [q, k, v, mask, bounds], {
      group,
      headSize: a.headSize,
      blocks: ATTENTION_BLOCKS,
    });
    const attention = tape.one("fromHeads", [mixed, batchTime], queryHeads);
    x = linear(attention, { paths: [path("o_proj")], bias: a.outputBias, residual: x });

    const feedForwardIn = tape.one("rmsNorm", [x], norm);
    const gain = weight(`${at}.post_attention_layernorm.weight`);
    const gate = linear(feedForwardIn, { paths: [path("gate_proj")], gain, bias: a.feedForwardBias });
    const up = linear(feedForwardIn, { paths: [path("up_proj")], gain, bias: a.feedForwardBias });
    const product = tape.one("swiglu", [gate, up]);
    x = linear(product, { paths: [path("down_proj")], bias: a.feedForwardBias, residual: x });
  }

  // Only positions that predict a target need the head: in RL that is one token in five.
  const last = tape.one("rmsNorm", [tape.one("gatherRows", [x, rows])], norm);
  const head = tape.one("scaleColumns", [weight(a.tied ? embedding : "lm_head.weight"), weight("model.norm.weight")]);
  const logits = tape.one("linear", [last, head], { inputs: a.width, outputs: a.vocab, scale: 1 / temperature });
  const [logprobs = "", entropy = ""] = tape.all("tokenScores", [logits, targets]);
  graph.output(logprobs, "float32", ["targets", 1]);
  graph.output(entropy, "float32", ["targets", 1]);
  let values: Value | null = null;
  if (trained.has(VALUE_WEIGHT)) {
    values = tape.one("linear", [last, weight(VALUE_WEIGHT), weight(VALUE_BIAS)], {
      inputs: a.width,
      outputs: 1,
      bias: 1,
    });
    graph.output(values, "float32", ["targets", 1]);
  }

  const gradients = new Map<string, string>();
  let embeddedGradient: string | null = null;
  if (pass !== "score") {
    const seeds = new Map([[logprobs, graph.input("dLogprobs", "float32", ["targets", 1])]]);
    if (pass === "backward+entropy") seeds.set(entropy, graph.input("dEntropy", "float32", ["targets", 1]));
    if (values !== null) seeds.set(values, graph.input("dValues", "float32", ["targets", 1]));
    const pulled = tape.gradients(seeds);
    for (const [name, shape] of trained) {
      const gradient = pulled.get(name);
      if (gradient !== undefined) gradients.set(name, graph.output(gradient, "float32", shape));
    }
    const gradient = pulled.get(embedded);
    if (trainsEmbedding && gradient !== undefined) {
      embeddedGradient = graph.output(gradient, "float32", ["rows", a.width]);
    }
  }
  return { bytes: graph.toBytes(), logprobs, entropy, values, gradients, embedded: embeddedGradient };
}
