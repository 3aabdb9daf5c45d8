/**
 * x · W with weights of 8 bits: a quarter of the bytes that a decode step reads, which is what it waits for once the
 * weights are larger than the processor's cache. Each token's activations are rounded to 8 bits on the way in, so that
 * the products and sums are of integers.
 *
 * Both sides are symmetric around 128 and unsigned: products of unsigned with signed bytes are added in 16 bits, and cut
 * off there, on processors without the VNNI instructions; those of two unsigned ones are exact on all.
 * Scales are one a column of the weights and one a token, never one a batch as DynamicQuantizeMatMul has them: a row's
 * result must not depend on what is answered beside it.
 */

import { type GraphBuilder, int } from "../engine/onnx/graph.ts";
import type { PackedLinear } from "./packed-weights.ts";

/** The byte that stands for 0. */
const ZERO = 128;
/** The largest distance from it, on both sides. */
const LARGEST = 127;
/** Keeps a row of zeros from being divided by its largest value. */
const SMALLEST_SCALE = 1e-30;

/** A matrix [in, out] in bytes: (byte − 128) · scale of its column. */
export interface QuantisedWeight {
  readonly bytes: Uint8Array;
  /** [out] */
  readonly scales: Float32Array;
}

/** Rounds a matrix to the nearest of 255 steps a column. @param weight [in, out] */
export function quantiseWeight({
  weight,
  inputs,
  outputs,
}: Pick<PackedLinear, "weight" | "inputs" | "outputs">): QuantisedWeight {
  const scales = new Float32Array(outputs);
  for (let i = 0; i < inputs; i++) {
    const row = i * outputs;
    for (let o = 0; o < outputs; o++) {
      const size = Math.abs(weight[row + o] ?? 0);
      if (size > (scales[o] ?? 0)) scales[o] = size;
    }
  }
  const steps = new Float32Array(outputs);
  for (let o = 0; o < outputs; o++) {
    const largest = scales[o] ?? 0;
    steps[o] = largest === 0 ? 0 : LARGEST / largest;
    scales[o] = largest / LARGEST;
  }
  const bytes = new Uint8Array(inputs * outputs);
  for (let i = 0; i < inputs; i++) {
    const row = i * outputs;
    // The half rounds to nearest: storing cuts off what is behind the point.
    for (let o = 0; o < outputs; o++) bytes[row + o] = (weight[row + o] ?? 0) * (steps[o] ?? 0) + (ZERO + 0.5);
  }
  return { bytes, scales };
}

/**
 * Adds x · W, without the bias, to a graph.
 * @param input float32 [..., in]
 * @returns float32 [..., out]
 */
export function int8Product(graph: GraphBuilder, input: string, name: string, linear: PackedLinear): string {
  const { inputs, outputs } = linear;
  const { bytes, scales } = quantiseWeight(linear);
  const weight = graph.initializer(name, "uint8", [inputs, outputs], bytes);
  const columnScales = graph.initializer(`${name}_scales`, "float32", [outputs], scales);
  const zero = graph.initializer(`${name}_zero`, "uint8", [], Uint8Array.of(ZERO));
  const largest = graph.node("ReduceMax", [graph.node("Abs", [input]), graph.int64s([-1])], { keepdims: int(1) });
  const tokenScales = graph.node("Max", [
    graph.node("Mul", [largest, graph.scalar(1 / LARGEST)]),
    graph.scalar(SMALLEST_SCALE),
  ]);
  const one = graph.scalar(1);
  const rounded = graph.node("QuantizeLinear", [graph.node("Div", [input, tokenScales]), one, zero]);
  const product = graph.node("com.microsoft.MatMulIntegerToFloat", [rounded, weight, one, columnScales, zero, zero]);
  return graph.node("Mul", [product, tokenScales]);
}
