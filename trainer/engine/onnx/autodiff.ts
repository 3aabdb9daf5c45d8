/**
 * Reverse-mode differentiation over ONNX graphs: one table of operations, each with its forward nodes
 * and its vector–Jacobian product, and a tape that plays the table backwards.
 *
 * The operations are the layers of a decoder rather than ONNX's own operators, since the cheap form of
 * a derivative (what is kept, what is recomputed, which sums fold into a matrix product) belongs to the
 * layer. Shapes: N = B·T rows, W width, K key-value heads, G query heads to each, D head size, M targets, V vocabulary.
 */

import { FulgurError } from "#shared/errors.ts";
import { float, type GraphBuilder, int, ints } from "./graph.ts";

/** The name of a graph value. */
export type Value = string;

/** Numbers that fix an operation: sizes, epsilons, scales. */
export type OperationAttributes = Readonly<Record<string, number>>;

/** Builds an input's gradient, plus `addend` where the value already has a gradient from another use. */
type Pull = (addend: Value | undefined) => Value;

interface Forward {
  readonly outputs: readonly Value[];
  /** Intermediate values that the derivative reuses. */
  readonly saved: readonly Value[];
}

interface Call extends Forward {
  readonly operation: Operation;
  readonly inputs: readonly Value[];
  readonly attributes: OperationAttributes;
}

/** One row of the table. */
export interface Rule {
  readonly forward: (graph: GraphBuilder, inputs: readonly Value[], attributes: OperationAttributes) => Forward;
  /**
   * @param gradients ∂L/∂output of each output; "" where nothing depends on it
   * @returns a pull for each input that can have a gradient
   */
  readonly vjp: (graph: GraphBuilder, call: Call, gradients: readonly Value[]) => readonly (Pull | undefined)[];
}

/** Names of the operations in the table. */
export type Operation =
  | "linear"
  | "addBias"
  | "rmsNorm"
  | "scaleColumns"
  | "concatRows"
  | "blockDiagonal"
  | "splitColumns"
  | "reshapeColumns"
  | "rope"
  | "toHeads"
  | "fromHeads"
  | "attend"
  | "swiglu"
  | "gatherRows"
  | "tokenScores";

/** Records operations as they are added to a graph, and adds the graph of their gradients. */
export class Tape {
  readonly #graph: GraphBuilder;
  readonly #calls: Call[] = [];
  readonly #live = new Set<Value>();

  constructor(graph: GraphBuilder) {
    this.#graph = graph;
  }

  /** Marks a value whose gradient will be asked for; whatever depends on it is differentiated, the rest is not. */
  watch(value: Value): Value {
    this.#live.add(value);
    return value;
  }

  /** Adds an operation with one output. */
  one(operation: Operation, inputs: readonly Value[], attributes: OperationAttributes = {}): Value {
    const [output = ""] = this.all(operation, inputs, attributes);
    return output;
  }

  /** Adds an operation and returns all its outputs. An input of "" is left out. */
  all(operation: Operation, inputs: readonly Value[], attributes: OperationAttributes = {}): readonly Value[] {
    const forward = RULES[operation].forward(this.#graph, inputs, attributes);
    if (inputs.some((input) => this.#live.has(input))) {
      this.#calls.push({ operation, inputs, attributes, ...forward });
      for (const output of forward.outputs) this.#live.add(output);
    }
    return forward.outputs;
  }

  /**
   * Adds the backward pass.
   * @param seeds ∂L/∂value for the values that L depends on directly
   * @returns ∂L/∂value for every watched value that L depends on, and everything between
   */
  gradients(seeds: ReadonlyMap<Value, Value>): Map<Value, Value> {
    const gradients = new Map(seeds);
    for (const call of this.#calls.toReversed()) {
      const outputGradients = call.outputs.map((output) => gradients.get(output) ?? "");
      if (outputGradients.every((gradient) => gradient === "")) continue;
      const pulls = RULES[call.operation].vjp(this.#graph, call, outputGradients);
      for (const [i, input] of call.inputs.entries()) {
        const pull = pulls[i];
        if (pull !== undefined && this.#live.has(input)) gradients.set(input, pull(gradients.get(input)));
      }
    }
    return gradients;
  }
}

/** The table: operation → forward nodes and vector–Jacobian product. */
export const RULES: Readonly<Record<Operation, Rule>> = {
  /**
   * y_NO = scale · x_NI · w_OIᵀ + addend, where addend is a bias [O] (attribute `bias` 1), a residual [N, O], or "".
   * Attributes `inputs` and `outputs` are I and O; `asLaid` 1 spares a copy of w in the backward pass.
   */
  linear: {
    forward: (graph, [x = "", w = "", addend = ""], { scale = 1 }) => {
      const inputs = addend === "" ? [x, w] : [x, w, addend];
      return { outputs: [graph.node("Gemm", inputs, { transB: int(1), alpha: float(scale) })], saved: [] };
    },
    vjp: (graph, { inputs: [x = "", w = "", addend = ""], attributes }, [dy = ""]) => {
      const { scale = 1, bias = 0, inputs: width = 0, outputs: outWidth = 0, asLaid = 0 } = attributes;
      const alpha = float(scale);
      // The runtime reads a right factor that lies transposed faster; a constant is laid so once, a small one at little cost.
      const wT = (): Value => (asLaid === 1 ? w : flipped(graph, w));
      return [
        (sum) =>
          graph.node("Gemm", sum === undefined ? [dy, wT()] : [dy, wT(), sum], { transB: int(1 - asLaid), alpha }),
        // A left factor that it has to transpose itself is slow: the narrower of x and dy is written out transposed.
        plus(graph, () =>
          width < outWidth
            ? flipped(graph, graph.node("Gemm", [flipped(graph, x), dy], { alpha }))
            : graph.node("Gemm", [flipped(graph, dy), x], { alpha }),
        ),
        addend === ""
          ? undefined
          : plus(graph, () =>
              bias === 1 ? graph.node("ReduceSum", [dy, graph.int64s([0])], { keepdims: int(0) }) : dy,
            ),
      ];
    },
  },

  /** x_NO + bias_O. */
  addBias: {
    forward: (graph, [x = "", bias = ""]) => ({ outputs: [graph.node("Add", [x, bias])], saved: [] }),
    vjp: (graph, _call, [dy = ""]) => [
      plus(graph, () => dy),
      plus(graph, () => graph.node("ReduceSum", [dy, graph.int64s([0])], { keepdims: int(0) })),
    ],
  },

  /** y = x / rms(x) · gain over the last axis; gain [last] or "" for 1. Attributes: `epsilon`, `size` (length of that axis), `rank` of x. */
  rmsNorm: {
    forward: (graph, [x = "", gain = ""], { epsilon = 1e-6, size = 0 }) => {
      // The normalised value itself is what the derivative needs, so the gain is applied apart from it.
      const [normal = "", inverseRms = ""] = graph.nodes("SimplifiedLayerNormalization", [x, ones(graph, size)], 2, {
        axis: int(-1),
        epsilon: float(epsilon),
      });
      return {
        outputs: [gain === "" ? normal : graph.node("Mul", [normal, gain])],
        saved: [normal, inverseRms],
      };
    },
    vjp: (
      graph,
      { inputs: [, gain = ""], saved: [normal = "", inverseRms = ""], attributes: { rank = 2 } },
      [dy = ""],
    ) => [
      plus(graph, () => {
        const dNormal = gain === "" ? dy : graph.node("Mul", [dy, gain]);
        const along = graph.node("ReduceMean", [graph.node("Mul", [dNormal, normal]), graph.int64s([-1])]);
        const across = graph.node("Sub", [dNormal, graph.node("Mul", [normal, along])]);
        return graph.node("Mul", [across, inverseRms]);
      }),
      gain === ""
        ? undefined
        : plus(graph, () => {
            const axes = graph.int64s(Array.from({ length: rank - 1 }, (_, axis) => axis));
            return graph.node("ReduceSum", [graph.node("Mul", [dy, normal]), axes], { keepdims: int(0) });
          }),
    ],
  },

  /** w_OI · diag(gain_I): a norm's gain folded into the linear map that follows, so that no pass over activations is spent on it. */
  scaleColumns: {
    forward: (graph, [w = "", gain = ""]) => ({ outputs: [graph.node("Mul", [w, gain])], saved: [] }),
    vjp: (graph, { inputs: [w = "", gain = ""] }, [dy = ""]) => [
      plus(graph, () => graph.node("Mul", [dy, gain])),
      plus(graph, () => graph.node("ReduceSum", [graph.node("Mul", [dy, w]), graph.int64s([0])], { keepdims: int(0) })),
    ],
  },

  /** Stacks inputs along axis 0. Attributes `rows0`, `rows1`, … are their sizes there. */
  concatRows: {
    forward: (graph, inputs) => ({ outputs: [graph.node("Concat", inputs, { axis: int(0) })], saved: [] }),
    vjp: (graph, { inputs, attributes }, [dy = ""]) => {
      let begin = 0;
      return inputs.map((_, i) => {
        const from = begin;
        begin += attributes[`rows${i}`] ?? 0;
        const to = begin;
        return plus(graph, () =>
          graph.node("Slice", [dy, graph.int64s([from]), graph.int64s([to]), graph.int64s([0])]),
        );
      });
    },
  },

  /** Puts matrices on the diagonal of a larger one that is 0 elsewhere. Attributes: `rows0`, …, and `columns`, the same for all. */
  blockDiagonal: {
    forward: (graph, inputs, attributes) => {
      const { columns = 0 } = attributes;
      const padded = inputs.map((input, i) =>
        graph.node("Pad", [input, graph.int64s([0, i * columns, 0, (inputs.length - 1 - i) * columns])]),
      );
      return { outputs: [graph.node("Concat", padded, { axis: int(0) })], saved: [] };
    },
    vjp: (graph, { inputs, attributes }, [dy = ""]) => {
      const { columns = 0 } = attributes;
      let begin = 0;
      return inputs.map((_, i) => {
        const from = begin;
        begin += attributes[`rows${i}`] ?? 0;
        const to = begin;
        return plus(graph, () =>
          graph.node("Slice", [
            dy,
            graph.int64s([from, i * columns]),
            graph.int64s([to, (i + 1) * columns]),
            graph.int64s([0, 1]),
          ]),
        );
      });
    },
  },

  /** x [N, …] → parts side by side, [N, columns0], [N, columns1], … (attributes). */
  splitColumns: {
    forward: (graph, [x = ""], attributes) => {
      const sizes = Object.values(attributes);
      return { outputs: graph.nodes("Split", [x, graph.int64s(sizes)], sizes.length, { axis: int(1) }), saved: [] };
    },
    vjp: (graph, _call, gradients) => [plus(graph, () => graph.node("Concat", gradients, { axis: int(1) }))],
  },

  /** x [N, `from`] → [N · from / to, `to`]: the same numbers in rows of another length. */
  reshapeColumns: {
    forward: (graph, [x = ""], { to = 0 }) => ({
      outputs: [graph.node("Reshape", [x, graph.int64s([-1, to])])],
      saved: [],
    }),
    vjp: (graph, { attributes: { from = 0 } }, [dy = ""]) => [
      plus(graph, () => graph.node("Reshape", [dy, graph.int64s([-1, from])])),
    ],
  },

  /**
   * Rotates heads side by side, x [N, `columns`], by their positions. The other inputs are cos and sin [≥ T, D / 2]
   * and the int64 pair (B, T).
   */
  rope: {
    forward: (graph, [x = "", cos = "", sin = "", batchTime = ""], { columns = 0 }) => ({
      outputs: [rotate(graph, x, { cos, sin, batchTime, columns })],
      saved: [],
    }),
    // A rotation's transpose is the rotation back.
    vjp: (graph, { inputs: [, cos = "", sin = "", batchTime = ""], attributes: { columns = 0 } }, [dy = ""]) => [
      plus(graph, () => rotate(graph, dy, { cos, sin: graph.node("Neg", [sin]), batchTime, columns })),
    ],
  },

  /**
   * x [N, K·G·D] → [B, K, T·G, D]: each key-value head with the queries of its group, time by time. The second input
   * is the int64 pair (B, T). Attributes: `kvHeads`, `group`, `headSize`.
   */
  toHeads: {
    forward: (graph, [x = "", batchTime = ""], attributes) => ({
      outputs: [toHeads(graph, x, batchTime, attributes)],
      saved: [],
    }),
    vjp: (graph, { attributes }, [dy = ""]) => [plus(graph, () => fromHeads(graph, dy, attributes))],
  },

  /** The way back from `toHeads`, with the same inputs and attributes. */
  fromHeads: {
    forward: (graph, [x = ""], attributes) => ({ outputs: [fromHeads(graph, x, attributes)], saved: [] }),
    vjp: (graph, { inputs: [, batchTime = ""], attributes }, [dy = ""]) => [
      plus(graph, () => toHeads(graph, dy, batchTime, attributes)),
    ],
  },

  /**
   * Causal softmax attention: q [B, K, T·G, D], k and v [B, K, T, D] → [B, K, T·G, D]. Queries of a group share one
   * matrix product, and the sums over the group in ∂k and ∂v fall out of it.
   *
   * Time is cut into `blocks` at `bounds` (int64 [blocks + 1], 0 … T), and a block of queries sees only the keys up to
   * its end: with 4 blocks, 3/8 of the square that the mask would throw away is never computed.
   * `mask` [T·G, T] is added to the scores. Attributes: `group`, `headSize`, `blocks`.
   */
  attend: {
    forward: (graph, [q = "", k = "", v = "", mask = "", bounds = ""], { group = 1, headSize = 0, blocks = 1 }) => {
      const scale = headSize ** -0.5;
      const cuts = Array.from({ length: blocks }, (_, i) => blockOf(graph, bounds, i, group));
      const saved: Value[] = [];
      const mixed = cuts.map(({ firstRow, endRow, endKey }) => {
        const queries = slice(graph, q, firstRow, endRow, 2);
        const keys = slice(graph, k, graph.int64s([0]), endKey, 2);
        const values = slice(graph, v, graph.int64s([0]), endKey, 2);
        const hidden = slice(graph, slice(graph, mask, firstRow, endRow, 0), graph.int64s([0]), endKey, 1);
        const scores = graph.node("Add", [matmul(graph, queries, keys, { transB: true, scale }), hidden]);
        const probabilities = graph.node("Softmax", [scores], { axis: int(-1) });
        saved.push(queries, keys, values, probabilities);
        return graph.node("MatMul", [probabilities, values]);
      });
      return { outputs: [graph.node("Concat", mixed, { axis: int(2) })], saved };
    },
    vjp: (graph, { inputs, outputs, saved, attributes }, [dy = ""]) => {
      const [, , , , bounds = ""] = inputs;
      const [mixed = ""] = outputs;
      const { group = 1, headSize = 0, blocks = 1 } = attributes;
      const scale = headSize ** -0.5;
      // Σ_j p_ij·∂p_ij equals ∂mixed_i · mixed_i, a sum over D instead of over T.
      const rowSums = graph.node("ReduceSum", [graph.node("Mul", [dy, mixed]), graph.int64s([-1])]);
      const dQueries: Value[] = [];
      // Kept transposed, [B, K, D, keys]: qᵀ·∂s transposes the narrow factor, ∂sᵀ·q would transpose the square one.
      let dKeys = "";
      let dValues = "";
      for (let i = 0; i < blocks; i++) {
        const { firstRow, endRow, addedKeys } = blockOf(graph, bounds, i, group);
        const [queries = "", keys = "", values = "", probabilities = ""] = saved.slice(4 * i);
        const dMixed = slice(graph, dy, firstRow, endRow, 2);
        const dProbabilities = matmul(graph, dMixed, values, { transB: true });
        const sums = slice(graph, rowSums, firstRow, endRow, 2);
        const dScores = graph.node("Mul", [probabilities, graph.node("Sub", [dProbabilities, sums])]);
        dQueries.push(matmul(graph, dScores, keys, { scale }));
        const dk = matmul(graph, queries, dScores, { transA: true, scale });
        const dv = matmul(graph, dMixed, probabilities, { transA: true });
        const widen = (narrow: Value): Value =>
          graph.node("Pad", [
            narrow,
            graph.node("Concat", [graph.int64s([0, 0, 0, 0, 0, 0, 0]), addedKeys], { axis: int(0) }),
          ]);
        dKeys = i === 0 ? dk : graph.node("Add", [dk, widen(dKeys)]);
        dValues = i === 0 ? dv : graph.node("Add", [dv, widen(dValues)]);
      }
      const upright = (transposed: Value): Value => graph.node("Transpose", [transposed], { perm: ints([0, 1, 3, 2]) });
      return [
        plus(graph, () => graph.node("Concat", dQueries, { axis: int(2) })),
        plus(graph, () => upright(dKeys)),
        plus(graph, () => upright(dValues)),
      ];
    },
  },

  /** silu(gate) · up, elementwise. */
  swiglu: {
    forward: (graph, [gate = "", up = ""]) => {
      const sigmoid = graph.node("Sigmoid", [gate]);
      const silu = graph.node("Mul", [gate, sigmoid]);
      const product = graph.node("Mul", [silu, up]);
      return { outputs: [product], saved: [sigmoid, silu, product] };
    },
    vjp: (graph, { inputs: [, up = ""], saved: [sigmoid = "", silu = "", product = ""] }, [dy = ""]) => [
      // ∂/∂gate = σ·up + product·(1 − σ), written with three passes instead of five.
      plus(graph, () => {
        const slope = graph.node("Add", [graph.node("Mul", [sigmoid, graph.node("Sub", [up, product])]), product]);
        return graph.node("Mul", [dy, slope]);
      }),
      plus(graph, () => graph.node("Mul", [dy, silu])),
    ],
  },

  /** Rows of x_NW at distinct indices int64 [M, 1] → [M, W]. */
  gatherRows: {
    forward: (graph, [x = "", rows = ""]) => ({ outputs: [graph.node("GatherND", [x, rows])], saved: [] }),
    // Indices are distinct: ScatterND only copies here, and does not meet its race on duplicates.
    vjp: (graph, { inputs: [x = "", rows = ""] }, [dy = ""]) => [
      plus(graph, () => graph.node("ScatterND", [graph.node("ConstantOfShape", [graph.node("Shape", [x])]), rows, dy])),
    ],
  },

  /** logits_MV and targets int64 [M, 1] → log-probability of the target [M, 1] and entropy of the row [M, 1]. */
  tokenScores: {
    forward: (graph, [logits = "", targets = ""]) => {
      const logs = graph.node("LogSoftmax", [logits], { axis: int(-1) });
      const probabilities = graph.node("Exp", [logs]);
      const logprobs = graph.node("GatherElements", [logs, targets], { axis: int(1) });
      const weighted = graph.node("Mul", [probabilities, logs]);
      const entropy = graph.node("Neg", [graph.node("ReduceSum", [weighted, graph.int64s([-1])])]);
      return { outputs: [logprobs, entropy], saved: [logs, probabilities] };
    },
    vjp: (graph, call, [dLogprobs = "", dEntropy = ""]) => {
      const [, targets = ""] = call.inputs;
      const [, entropy = ""] = call.outputs;
      const [logs = "", probabilities = ""] = call.saved;
      return [
        plus(graph, () => {
          // ∂logit = ∂logprob·(onehot − p) − ∂entropy·p·(log p + entropy)
          let pull = dLogprobs;
          if (dEntropy !== "") {
            const surprise = graph.node("Mul", [dEntropy, graph.node("Add", [logs, entropy])]);
            pull = pull === "" ? surprise : graph.node("Add", [pull, surprise]);
          }
          const spread = graph.node("Mul", [probabilities, graph.node("Neg", [pull])]);
          if (dLogprobs === "") return spread;
          const atTargets = graph.node("Add", [
            graph.node("GatherElements", [spread, targets], { axis: int(1) }),
            dLogprobs,
          ]);
          return graph.node("ScatterElements", [spread, targets, atTargets], { axis: int(1) });
        }),
      ];
    },
  },
};

const SWAP_TIME_AND_HEADS = ints([0, 2, 1, 3]);

function plus(graph: GraphBuilder, build: () => Value): Pull {
  return (addend) => (addend === undefined ? build() : graph.node("Add", [addend, build()]));
}

interface Rotation {
  readonly cos: Value;
  readonly sin: Value;
  readonly batchTime: Value;
  readonly columns: number;
}

function rotate(graph: GraphBuilder, x: Value, { cos, sin, batchTime, columns }: Rotation): Value {
  const shape = graph.node("Concat", [batchTime, graph.int64s([columns])], { axis: int(0) });
  const byTime = graph.node("Reshape", [x, shape]);
  const rotated = graph.node("com.microsoft.RotaryEmbedding", [byTime, graph.int64s([0]), cos, sin]);
  return graph.node("Reshape", [rotated, graph.int64s([-1, columns])]);
}

function toHeads(graph: GraphBuilder, x: Value, batchTime: Value, attributes: OperationAttributes): Value {
  const { kvHeads = 0, group = 1, headSize = 0 } = attributes;
  const shape = graph.node("Concat", [batchTime, graph.int64s([kvHeads, group * headSize])], { axis: int(0) });
  const headsFirst = graph.node("Transpose", [graph.node("Reshape", [x, shape])], { perm: SWAP_TIME_AND_HEADS });
  return group === 1 ? headsFirst : graph.node("Reshape", [headsFirst, graph.int64s([0, 0, -1, headSize])]);
}

function fromHeads(graph: GraphBuilder, x: Value, attributes: OperationAttributes): Value {
  const { kvHeads = 0, group = 1, headSize = 0 } = attributes;
  const grouped = group === 1 ? x : graph.node("Reshape", [x, graph.int64s([0, 0, -1, group * headSize])]);
  const timeFirst = graph.node("Transpose", [grouped], { perm: SWAP_TIME_AND_HEADS });
  return graph.node("Reshape", [timeFirst, graph.int64s([-1, kvHeads * group * headSize])]);
}

function slice(graph: GraphBuilder, x: Value, from: Value, to: Value, axis: number): Value {
  return graph.node("Slice", [x, from, to, graph.int64s([axis])]);
}

/** Block i of queries: its rows, the end of the keys it sees, and how many of these the block before did not see. */
function blockOf(
  graph: GraphBuilder,
  bounds: Value,
  i: number,
  group: number,
): { readonly firstRow: Value; readonly endRow: Value; readonly endKey: Value; readonly addedKeys: Value } {
  const at = (index: number): Value => slice(graph, bounds, graph.int64s([index]), graph.int64s([index + 1]), 0);
  const rows = (time: Value): Value => (group === 1 ? time : graph.node("Mul", [time, graph.int64s([group])]));
  const [begin, end] = [at(i), at(i + 1)];
  return { firstRow: rows(begin), endRow: rows(end), endKey: end, addedKeys: graph.node("Sub", [end, begin]) };
}

interface MatMulOptions {
  readonly transA?: boolean;
  readonly transB?: boolean;
  readonly scale?: number;
}

function matmul(graph: GraphBuilder, a: Value, b: Value, options: MatMulOptions): Value {
  const { transA = false, transB = false, scale = 1 } = options;
  return graph.node("com.microsoft.FusedMatMul", [a, b], {
    transA: int(Number(transA)),
    transB: int(Number(transB)),
    alpha: float(scale),
  });
}

/** The transpose of a matrix, written out. */
function flipped(graph: GraphBuilder, matrix: Value): Value {
  return graph.node("Transpose", [matrix], { perm: ints([1, 0]) });
}

function ones(graph: GraphBuilder, size: number): Value {
  if (size <= 0) throw new FulgurError("ERR_INTERNAL", "rmsNorm needs the attribute size.");
  return graph.vector(1, size);
}
