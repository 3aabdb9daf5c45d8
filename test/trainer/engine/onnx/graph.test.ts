import { expect, test } from "vitest";
import { float, floats, GraphBuilder, int, ints, text } from "../../../../trainer/engine/onnx/graph.ts";
import { openSession, Tensor } from "../../../../trainer/engine/onnx/runtime.ts";

test("a graph of inputs, constants, nodes and outputs runs in ONNX Runtime", async () => {
  const graph = new GraphBuilder("affine");
  const x = graph.input("x", "float32", ["rows", 2]);
  const w = graph.initializer("w", "float32", [2, 2], Float32Array.of(1, 2, 3, 4));
  const y = graph.node("Gemm", [x, w, graph.vector(10, 2)], { transB: int(1), alpha: float(0.5) });
  graph.output(y, "float32", ["rows", 2], "y");
  expect(graph.inputNames).toEqual(["x"]);
  expect(graph.outputNames).toEqual(["y"]);
  const session = await openSession(graph.toBytes(), 1);
  const { y: result } = await session.run({ x: new Tensor("float32", Float32Array.of(1, 1, 2, 0), [2, 2]) });
  expect([...(result?.dims ?? [])]).toEqual([2, 2]);
  expect(result?.data).toEqual(Float32Array.of(11.5, 13.5, 11, 13));
});

test("attributes of every kind, several outputs, left-out inputs and other domains are encoded", async () => {
  const graph = new GraphBuilder("kinds");
  const x = graph.input("x", "float32", [1, 4]);
  const [left = "", right = ""] = graph.nodes("Split", [x, graph.int64s([1, 3])], 2, { axis: int(-1) });
  const clipped = graph.node("Clip", [right, "", graph.scalar(2.5)]);
  const turned = graph.node("Transpose", [clipped], { perm: ints([1, 0]) });
  const smooth = graph.node("com.microsoft.QuickGelu", [turned], { alpha: float(0) });
  const rounded = graph.node("Resize", [left, "", graph.initializer("scales", "float32", [2], Float32Array.of(1, 2))], {
    mode: text("nearest"),
  });
  const constant = graph.node("Constant", [], { value_floats: floats([0.5, 1.5]) });
  graph.output(smooth, "float32", [3, 1], "smooth");
  graph.output(rounded, "float32", [1, 2], "rounded");
  graph.output(constant, "float32", [2], "constant");
  const session = await openSession(graph.toBytes(), 1);
  const results = await session.run({ x: new Tensor("float32", Float32Array.of(1, 2, 3, -4), [1, 4]) });
  // QuickGelu with alpha 0 halves.
  expect(results["smooth"]?.data).toEqual(Float32Array.of(1, 1.25, -2));
  expect(results["rounded"]?.data).toEqual(Float32Array.of(1, 1));
  expect(results["constant"]?.data).toEqual(Float32Array.of(0.5, 1.5));
});

test("equal constants are shared, names are unique, and reading an undefined value fails at once", () => {
  const graph = new GraphBuilder("names");
  expect(graph.scalar(2)).toBe(graph.scalar(2));
  expect(graph.int64s([1, -1])).toBe(graph.int64s([1, -1]));
  const x = graph.input("x", "float32", [2]);
  expect(() => graph.input("x", "float32", [2])).toThrow(/already defines "x"/);
  expect(() => graph.node("Add", [x, "y"])).toThrow(/Add reads "y"/);
  expect(graph.node("Neg", [x])).not.toBe(graph.node("Neg", [x]));
});

test("a constant of the wrong length is refused, and so is a graph the runtime does not know", async () => {
  const graph = new GraphBuilder("wrong");
  expect(() => graph.initializer("w", "float32", [3], new Float32Array(2))).toThrow(/needs 12 bytes, got 8/);
  graph.output(graph.node("NoSuchOperator", [graph.scalar(1)]), "float32", []);
  await expect(openSession(graph.toBytes(), 1)).rejects.toMatchObject({ code: "ERR_PLATFORM" });
});
