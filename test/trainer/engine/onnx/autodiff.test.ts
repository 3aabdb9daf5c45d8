import { describe, expect, test } from "vitest";
import { type Operation, type OperationAttributes, RULES, Tape } from "../../../../trainer/engine/onnx/autodiff.ts";
import { GraphBuilder } from "../../../../trainer/engine/onnx/graph.ts";
import { openSession, Tensor } from "../../../../trainer/engine/onnx/runtime.ts";
import { Random } from "../../../../trainer/engine/random.ts";

/**
 * Central differences in float32 with a step of 2⁻⁷: truncation is about h²/6 ≈ 1e-5 of the third derivative, rounding
 * about 1e-7 · |L| / h ≈ 1e-5 |L|, so 2e-3 separates a right derivative from a wrong one by orders of magnitude.
 */
const STEP = 2 ** -7;
const TOLERANCE = 2e-3;

interface Input {
  readonly shape: readonly number[];
  /** Given values are not differentiated: indices, masks, tables. */
  readonly fixed?: Float32Array | BigInt64Array;
}

interface Case {
  readonly title: string;
  readonly operation: Operation;
  readonly inputs: readonly (Input | null)[];
  readonly outputs: readonly (readonly number[])[];
  readonly attributes?: OperationAttributes;
}

const int64 = (values: readonly number[]): BigInt64Array => BigInt64Array.from(values, (value) => BigInt(value));
const heads = { kvHeads: 2, group: 2, headSize: 4 };
const batchTime = { shape: [2], fixed: int64([2, 3]) };
const angles = Float32Array.from({ length: 6 }, (_, i) => 0.3 * i);
const rotation = [
  { shape: [3, 2], fixed: angles.map((angle) => Math.cos(angle)) },
  { shape: [3, 2], fixed: angles.map((angle) => Math.sin(angle)) },
];
/** Two query heads to a group, three positions, time by time. */
const H = -1e30;
const causal = Float32Array.from([0, H, H, 0, H, H, 0, 0, H, 0, 0, H, 0, 0, 0, 0, 0, 0]);
const attended = [
  { shape: [2, 2, 6, 4] },
  { shape: [2, 2, 3, 4] },
  { shape: [2, 2, 3, 4] },
  { shape: [6, 3], fixed: causal },
];

const CASES: readonly Case[] = [
  {
    title: "linear",
    operation: "linear",
    inputs: [{ shape: [5, 3] }, { shape: [4, 3] }],
    outputs: [[5, 4]],
    attributes: { scale: 0.7 },
  },
  {
    title: "linear with a bias",
    operation: "linear",
    inputs: [{ shape: [5, 3] }, { shape: [4, 3] }, { shape: [4] }],
    outputs: [[5, 4]],
    attributes: { bias: 1 },
  },
  {
    title: "linear with a residual",
    operation: "linear",
    inputs: [{ shape: [5, 3] }, { shape: [4, 3] }, { shape: [5, 4] }],
    outputs: [[5, 4]],
    attributes: { scale: 2 },
  },
  { title: "addBias", operation: "addBias", inputs: [{ shape: [5, 3] }, { shape: [3] }], outputs: [[5, 3]] },
  {
    title: "rmsNorm",
    operation: "rmsNorm",
    inputs: [{ shape: [5, 6] }, null],
    outputs: [[5, 6]],
    attributes: { size: 6 },
  },
  {
    title: "rmsNorm of heads with a gain",
    operation: "rmsNorm",
    inputs: [{ shape: [2, 3, 2, 6] }, { shape: [6] }],
    outputs: [[2, 3, 2, 6]],
    attributes: { size: 6, rank: 4, epsilon: 0.1 },
  },
  { title: "scaleColumns", operation: "scaleColumns", inputs: [{ shape: [5, 3] }, { shape: [3] }], outputs: [[5, 3]] },
  {
    title: "concatRows",
    operation: "concatRows",
    inputs: [{ shape: [2, 3] }, { shape: [1, 3] }, { shape: [4, 3] }],
    outputs: [[7, 3]],
    attributes: { rows0: 2, rows1: 1, rows2: 4 },
  },
  {
    title: "concatRows of vectors",
    operation: "concatRows",
    inputs: [{ shape: [2] }, { shape: [3] }],
    outputs: [[5]],
    attributes: { rows0: 2, rows1: 3 },
  },
  {
    title: "blockDiagonal",
    operation: "blockDiagonal",
    inputs: [{ shape: [4, 2] }, { shape: [3, 2] }, { shape: [1, 2] }],
    outputs: [[8, 6]],
    attributes: { rows0: 4, rows1: 3, rows2: 1, columns: 2 },
  },
  {
    title: "splitColumns",
    operation: "splitColumns",
    inputs: [{ shape: [3, 6] }],
    outputs: [
      [3, 1],
      [3, 3],
      [3, 2],
    ],
    attributes: { a: 1, b: 3, c: 2 },
  },
  {
    title: "reshapeColumns",
    operation: "reshapeColumns",
    inputs: [{ shape: [3, 6] }],
    outputs: [[9, 2]],
    attributes: { from: 6, to: 2 },
  },
  {
    title: "rope",
    operation: "rope",
    inputs: [{ shape: [6, 8] }, ...rotation, batchTime],
    outputs: [[6, 8]],
    attributes: { columns: 8 },
  },
  {
    title: "toHeads",
    operation: "toHeads",
    inputs: [{ shape: [6, 16] }, batchTime],
    outputs: [[2, 2, 6, 4]],
    attributes: heads,
  },
  {
    title: "fromHeads",
    operation: "fromHeads",
    inputs: [{ shape: [2, 2, 6, 4] }, batchTime],
    outputs: [[6, 16]],
    attributes: heads,
  },
  {
    title: "attend in one block",
    operation: "attend",
    inputs: [...attended, { shape: [2], fixed: int64([0, 3]) }],
    outputs: [[2, 2, 6, 4]],
    attributes: { ...heads, blocks: 1 },
  },
  {
    title: "attend in two blocks",
    operation: "attend",
    inputs: [...attended, { shape: [3], fixed: int64([0, 1, 3]) }],
    outputs: [[2, 2, 6, 4]],
    attributes: { ...heads, blocks: 2 },
  },
  { title: "swiglu", operation: "swiglu", inputs: [{ shape: [5, 3] }, { shape: [5, 3] }], outputs: [[5, 3]] },
  {
    title: "gatherRows",
    operation: "gatherRows",
    inputs: [{ shape: [5, 3] }, { shape: [2, 1], fixed: int64([4, 1]) }],
    outputs: [[2, 3]],
  },
  {
    title: "tokenScores",
    operation: "tokenScores",
    inputs: [{ shape: [3, 5] }, { shape: [3, 1], fixed: int64([4, 0, 4]) }],
    outputs: [
      [3, 1],
      [3, 1],
    ],
  },
];

/**
 * Compares ∂(Σ cotangent · output)/∂input with finite differences in every entry of every free input.
 * @param seeded outputs that take part
 * @returns the entries that disagree, and the largest derivative seen
 */
async function compare(
  { operation, inputs, outputs, attributes = {} }: Case,
  seeded: readonly number[],
): Promise<{ readonly wrong: readonly string[]; readonly largest: number }> {
  const random = Random.seeded(1);
  const draw = (shape: readonly number[]): Float32Array =>
    Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => 2 * random.next() - 1);
  const graph = new GraphBuilder("check");
  const tape = new Tape(graph);
  const feeds: Record<string, Tensor> = {};
  const free: { readonly name: string; readonly values: Float32Array }[] = [];
  const names = inputs.map((input, i) => {
    if (input === null) return "";
    const name = `x${i}`;
    const { shape, fixed } = input;
    const isIndex = fixed instanceof BigInt64Array;
    graph.input(name, isIndex ? "int64" : "float32", shape);
    if (fixed === undefined) {
      const values = draw(shape);
      free.push({ name: tape.watch(name), values });
      feeds[name] = new Tensor("float32", values, shape);
    } else {
      feeds[name] = isIndex ? new Tensor("int64", fixed, shape) : new Tensor("float32", fixed, shape);
    }
    return name;
  });
  const results = tape.all(operation, names, attributes);
  const cotangents = outputs.map((shape) => draw(shape));
  const seeds = new Map<string, string>();
  for (const i of seeded) {
    const [result, shape, cotangent] = [results[i], outputs[i], cotangents[i]];
    if (result === undefined || shape === undefined || cotangent === undefined) throw new Error("no such output");
    seeds.set(result, graph.initializer(`cotangent${i}`, "float32", shape, cotangent));
    graph.output(result, "float32", shape);
  }
  const gradients = tape.gradients(seeds);
  for (const { name } of free) graph.output(gradients.get(name) ?? "", "float32", feeds[name]?.dims ?? [], `d_${name}`);
  const session = await openSession(graph.toBytes(), 1);
  const floats = async (wanted: string): Promise<Float32Array> => {
    const data = (await session.run(feeds))[wanted]?.data;
    if (!(data instanceof Float32Array)) throw new Error(`no output ${wanted}`);
    return data;
  };
  const loss = async (): Promise<number> => {
    let sum = 0;
    for (const i of seeded) {
      const data = await floats(results[i] ?? "");
      for (const [j, cotangent] of (cotangents[i] ?? new Float32Array()).entries()) sum += cotangent * (data[j] ?? NaN);
    }
    return sum;
  };
  let largest = 0;
  const wrong: string[] = [];
  for (const { name, values } of free) {
    const gradient = await floats(`d_${name}`);
    if (gradient.length !== values.length) wrong.push(`${name} has ${gradient.length} entries`);
    for (const [i, value] of values.entries()) {
      values[i] = value + STEP;
      const above = await loss();
      values[i] = value - STEP;
      const below = await loss();
      values[i] = value;
      const numeric = (above - below) / (2 * STEP);
      largest = Math.max(largest, Math.abs(numeric));
      if (!(Math.abs((gradient[i] ?? NaN) - numeric) < TOLERANCE)) {
        wrong.push(`${name}[${i}] is ${gradient[i]}, differences give ${numeric}`);
      }
    }
  }
  return { wrong, largest };
}

describe("each rule agrees with finite differences", () => {
  test("and each operation of the table has a case", () => {
    expect(new Set(CASES.map(({ operation }) => operation))).toEqual(new Set(Object.keys(RULES)));
  });

  test.each(CASES)("$title", async (case_) => {
    const { wrong, largest } = await compare(case_, [...case_.outputs.keys()]);
    expect(wrong).toEqual([]);
    expect(largest).toBeGreaterThan(0.1);
  });

  test.each([0, 1])("tokenScores when only output %i is pulled", async (output) => {
    const case_ = CASES.find(({ operation }) => operation === "tokenScores");
    if (case_ === undefined) throw new Error("no case");
    const { wrong, largest } = await compare(case_, [output]);
    expect(wrong).toEqual([]);
    expect(largest).toBeGreaterThan(0.1);
  });
});

test("a value used twice gets the sum of both gradients", async () => {
  const graph = new GraphBuilder("twice");
  const tape = new Tape(graph);
  const x = tape.watch(graph.input("x", "float32", [1, 2]));
  const y = tape.one("swiglu", [x, x]);
  const z = tape.one("linear", [y, graph.initializer("w", "float32", [1, 2], Float32Array.of(1, 1)), ""]);
  const seed = graph.initializer("seed", "float32", [1, 1], Float32Array.of(1));
  graph.output(tape.gradients(new Map([[z, seed]])).get(x) ?? "", "float32", [1, 2], "dx");
  const session = await openSession(graph.toBytes(), 1);
  const { dx } = await session.run({ x: new Tensor("float32", Float32Array.of(0, 1), [1, 2]) });
  // d/dx x²σ(x) = 2xσ + x²σ(1 − σ): 0 at 0, and 2·0.7310586 + 0.7310586·0.2689414 at 1.
  expect(dx?.data[0]).toBe(0);
  expect(dx?.data[1]).toBeCloseTo(1.6587299, 5);
});

test("nothing is added to the graph for values that no watched value reaches", () => {
  const graph = new GraphBuilder("frozen");
  const tape = new Tape(graph);
  const x = graph.input("x", "float32", [1, 2]);
  const y = tape.one("swiglu", [x, x]);
  expect(tape.gradients(new Map([[y, x]])).has("x")).toBe(false);
});
