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
import { GraphBuilder, int } from "./graph.ts";

/** Which passes a graph holds. `backward+entropy` also takes cotangents of the entropy. */
export type Pass = "score" | "backward" | "backward+entropy";

/** Blocks that attention cuts time into; a batch has at least as many tokens in a row. More save little and cost nodes. */
export const ATTENTION_BLOCKS = 4;

/** Parts that a lean graph cuts targets into; it wants as many targets at least. */
export const HEAD_BLOCKS = 8;

/** What a decoder graph is built from. */
export interface DecoderGraphOptions {
  readonly architecture: Architecture;
  readonly pass: Pass;
  readonly temperature: number;
  /** Trained weights by name and shape; they are graph inputs under these names. A value head among them gives values. */
  readonly trained: ReadonlyMap<string, readonly number[]>;
  /** The other weights; they are constants of the graph, or inputs under these names. */
  readonly frozen: ReadonlyMap<string, Tensor>;
  /**
   * Whether frozen weights are inputs, read where they lie. Constants are laid out once for the products that they are in,
   * which is faster, but costs several copies of them for every session, and a graph holds 2 GiB of them at most.
   */
  readonly frozenAsInputs: boolean;
  /**
   * Whether it holds little at a time: activations of one layer, which the backward pass computes again, and logits of one
   * part in {@link HEAD_BLOCKS} of the targets. It costs about another forward pass.
   */
  readonly lean: boolean;
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
 * in a lean graph `headBounds` int64 [HEAD_BLOCKS + 1], where the head cuts targets, rising from 0 to M;
 * `cos` and `sin` float [≥ T, D / 2]; and for backward `dLogprobs` [M, 1], `dEntropy` [M, 1] and, with
 * a value head, `dValues` [M, 1].
 */
export function buildDecoderGraph(options: DecoderGraphOptions): DecoderGraph {
  const { architecture: a, pass, temperature, trained, frozen, frozenAsInputs, lean } = options;
  const graph = new GraphBuilder(`decoder-${pass}`);
  /** A tape that differentiates by the trained weights, which are values of their own names. */
  const recorder = (): Tape => {
    const recording = new Tape(graph);
    for (const name of trained.keys()) recording.watch(name);
    return recording;
  };
  // What is added to the graph below goes on this tape; a lean graph has one for each part that it goes back through.
  let tape = pass === "score" ? new Tape(graph) : recorder();
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
    } else if (constant !== undefined) {
      value = frozenAsInputs
        ? graph.input(name, "float32", constant.shape)
        : graph.initializer(name, "float32", constant.shape, constant.data);
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
    const attributes = {
      inputs,
      outputs,
      bias: Number(residual === "" && biasValue !== ""),
      asLaid: Number(frozenAsInputs),
    };
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
  /** A norm and what of its gain is left for the linear layers after it: theirs to fold in once, where they are constants. */
  const normed = (x: Value, gain: Value): { readonly x: Value; readonly gain: Value } =>
    frozenAsInputs
      ? { x: tape.one("rmsNorm", [x, gain], norm), gain: "" }
      : { x: tape.one("rmsNorm", [x], norm), gain };
  const headNorm = (x: Value, columns: number, gain: Value): Value => {
    const rows = tape.one("reshapeColumns", [x], { from: columns, to: a.headSize });
    const normed = tape.one("rmsNorm", [rows, gain], { epsilon: a.rmsEps, size: a.headSize });
    return tape.one("reshapeColumns", [normed], { from: a.headSize, to: columns });
  };
  const decoderLayer = (layer: number, x: Value): Value => {
    const at = `model.layers.${layer}`;
    const path = (name: string): string => linearPath(layer, name);

    const attentionIn = normed(x, weight(`${at}.input_layernorm.weight`));
    const attentionLinear = (...names: string[]): Value =>
      linear(attentionIn.x, { paths: names.map(path), gain: attentionIn.gain, bias: a.attentionBias });
    // One product is faster than three, but puts the weights side by side first.
    const [queries = "", keys = "", values = ""] = frozenAsInputs
      ? [attentionLinear("q_proj"), attentionLinear("k_proj"), attentionLinear("v_proj")]
      : tape.all("splitColumns", [attentionLinear("q_proj", "k_proj", "v_proj")], {
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
    const mixedIn = linear(attention, { paths: [path("o_proj")], bias: a.outputBias, residual: x });

    const feedForwardIn = normed(mixedIn, weight(`${at}.post_attention_layernorm.weight`));
    const feedForwardLinear = (name: string): Value =>
      linear(feedForwardIn.x, { paths: [path(name)], gain: feedForwardIn.gain, bias: a.feedForwardBias });
    const gate = feedForwardLinear("gate_proj");
    const up = feedForwardLinear("up_proj");
    const product = tape.one("swiglu", [gate, up]);
    return linear(product, { paths: [path("down_proj")], bias: a.feedForwardBias, residual: mixedIn });
  };
  /** Log-probabilities and entropies, [M, 1] each, of targets whose positions left the decoder as `normal`. */
  const scoresOf = (normal: { readonly x: Value; readonly gain: Value }, targets: Value): readonly [Value, Value] => {
    const headWeight = weight(a.tied ? embedding : "lm_head.weight");
    const head = normal.gain === "" ? headWeight : tape.one("scaleColumns", [headWeight, normal.gain]);
    const logits = tape.one("linear", [normal.x, head], {
      inputs: a.width,
      outputs: a.vocab,
      scale: 1 / temperature,
      asLaid: Number(frozenAsInputs),
    });
    const [logprobs = "", entropy = ""] = tape.all("tokenScores", [logits, targets]);
    return [logprobs, entropy];
  };

  const dLogprobs = pass === "score" ? "" : graph.input("dLogprobs", "float32", ["targets", 1]);
  const dEntropy = pass === "backward+entropy" ? graph.input("dEntropy", "float32", ["targets", 1]) : "";
  const pulled = new Map<Value, Value>();
  const collect = (found: ReadonlyMap<Value, Value>): void => {
    for (const [value, gradient] of found) {
      const before = pulled.get(value);
      pulled.set(value, before === undefined ? gradient : graph.node("Add", [before, gradient]));
    }
  };
  const goesBack = lean && pass !== "score";

  let x = embedded;
  const layerInputs: Value[] = [];
  // In a lean graph nothing of the layers is kept but what went into each.
  if (goesBack) tape = new Tape(graph);
  for (let layer = 0; layer < a.layers; layer++) {
    layerInputs.push(x);
    x = decoderLayer(layer, x);
  }
  if (goesBack) {
    tape = recorder();
    tape.watch(x);
  }

  // Only positions that predict a target need the head: in RL that is one token in five.
  const last = normed(tape.one("gatherRows", [x, rows]), weight("model.norm.weight"));
  let values: Value | null = null;
  const seeds = new Map<Value, Value>();
  if (trained.has(VALUE_WEIGHT)) {
    values = tape.one("linear", [last.x, weight(VALUE_WEIGHT), weight(VALUE_BIAS)], {
      inputs: a.width,
      outputs: 1,
      bias: 1,
    });
    graph.output(values, "float32", ["targets", 1]);
    if (pass !== "score") seeds.set(values, graph.input("dValues", "float32", ["targets", 1]));
  }

  let logprobs: Value;
  let entropy: Value;
  if (lean) {
    const headTape = tape;
    const headBounds = graph.input("headBounds", "int64", [HEAD_BLOCKS + 1]);
    const blocks: { logprobs: Value; entropy: Value; dLast: Value }[] = [];
    for (let block = 0; block < HEAD_BLOCKS; block++) {
      const part = (whole: Value): Value =>
        whole === ""
          ? ""
          : graph.node("Slice", [whole, boundAt(graph, headBounds, block), boundAt(graph, headBounds, block + 1)]);
      const previous = blocks.at(-1);
      const begin = part(last.x);
      const input = previous === undefined ? begin : after(graph, begin, [previous.dLast || previous.logprobs]);
      tape = pass === "score" ? new Tape(graph) : recorder();
      tape.watch(input);
      const [blockLogprobs, blockEntropy] = scoresOf({ x: input, gain: last.gain }, part(targets));
      let dLast = "";
      if (pass !== "score") {
        const found = tape.gradients(seedsOf([blockLogprobs, part(dLogprobs)], [blockEntropy, part(dEntropy)]));
        dLast = found.get(input) ?? "";
        found.delete(input);
        collect(found);
      }
      blocks.push({ logprobs: blockLogprobs, entropy: blockEntropy, dLast });
    }
    const joined = (parts: readonly Value[]): Value => graph.node("Concat", parts, { axis: int(0) });
    logprobs = joined(blocks.map((block) => block.logprobs));
    entropy = joined(blocks.map((block) => block.entropy));
    if (pass !== "score") {
      const dLast = joined(blocks.map((block) => block.dLast));
      collect(headTape.gradients(new Map([...seeds, [last.x, dLast]])));
    }
  } else {
    [logprobs, entropy] = scoresOf(last, targets);
    if (pass !== "score") {
      collect(tape.gradients(new Map([...seeds, ...seedsOf([logprobs, dLogprobs], [entropy, dEntropy])])));
    }
  }
  graph.output(logprobs, "float32", ["targets", 1]);
  graph.output(entropy, "float32", ["targets", 1]);

  if (goesBack) {
    let dx = pulled.get(x) ?? "";
    let done = [dx];
    for (const [layer, input] of [...layerInputs.entries()].toReversed()) {
      tape = recorder();
      const again = tape.watch(after(graph, input, done));
      const found = tape.gradients(new Map([[decoderLayer(layer, again), dx]]));
      dx = found.get(again) ?? "";
      const own = [...found].filter(([value]) => trained.has(value));
      collect(new Map(own));
      // A gradient that were left for later would hold the activations that it is made from.
      done = [dx, ...own.flatMap(([name, gradient]) => (trained.get(name)?.length === 2 ? [gradient] : []))];
    }
    pulled.set(embedded, dx);
  }
  const gradients = new Map<string, string>();
  for (const [name, shape] of pass === "score" ? [] : trained) {
    const gradient = pulled.get(name);
    if (gradient !== undefined) gradients.set(name, graph.output(gradient, "float32", shape));
  }
  let embeddedGradient: string | null = null;
  const gradient = pulled.get(embedded);
  if (trainsEmbedding && gradient !== undefined) {
    embeddedGradient = graph.output(gradient, "float32", ["rows", a.width]);
  }
  return { bytes: graph.toBytes(), logprobs, entropy, values, gradients, embedded: embeddedGradient };
}

/** Output → its cotangent, of those that are there. */
function seedsOf(...pairs: readonly (readonly [Value, Value])[]): Map<Value, Value> {
  return new Map(pairs.filter(([, cotangent]) => cotangent !== ""));
}

/** A bound as Slice wants it, [1]. */
function boundAt(graph: GraphBuilder, bounds: Value, index: number): Value {
  return graph.node("Slice", [bounds, graph.int64s([index]), graph.int64s([index + 1])]);
}

/**
 * The same numbers [N, W], but only once the other matrices are there: the runtime would otherwise compute everything that it can
 * as early as it can, and find that what is computed again was computed before.
 */
function after(graph: GraphBuilder, value: Value, others: readonly Value[]): Value {
  const [first = "", ...rest] = others
    .filter((other) => other !== "")
    .map((other) => graph.node("Slice", [other, graph.int64s([0, 0]), graph.int64s([1, 1])]));
  const corners = rest.reduce((sum, corner) => graph.node("Add", [sum, corner]), first);
  return graph.node("Add", [value, graph.node("Mul", [corners, graph.scalar(0)])]);
}
