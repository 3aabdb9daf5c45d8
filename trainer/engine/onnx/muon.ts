/**
 * Muon: momentum whose update is made orthogonal, for the matrices inside the layers. The products run in
 * ONNX Runtime, since JavaScript would spend longer on them than the backward pass takes.
 * @see Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
 */

import type { InferenceSession } from "onnxruntime-node";
import { FulgurError } from "#shared/errors.ts";
import type { AdamwArrays } from "./adamw.ts";
import { GraphBuilder, float, int } from "./graph.ts";
import { openSession, Tensor } from "./runtime.ts";

/** One step's numbers. */
export interface MuonOptions {
  readonly learningRate: number;
  readonly momentum: number;
  readonly weightDecay: number;
  readonly gradientScale: number;
}

/** Whether a parameter is one of the matrices that Muon is for: inside a layer, and not the embedding or the head. */
export function usesMuon({ name, shape }: { readonly name: string; readonly shape: readonly number[] }): boolean {
  return shape.length === 2 && name.includes(".layers.");
}

/** Takes Muon steps; holds the session that orthogonalises. */
export class Muon {
  readonly #threads: number;
  #session: Promise<InferenceSession> | null = null;

  constructor(threads: number) {
    this.#threads = threads;
  }

  /** One step, in place, on weights and first moments (the momentum). Second moments are not used. */
  async step(
    arrays: Omit<AdamwArrays, "secondMoments">,
    shape: readonly number[],
    options: MuonOptions,
  ): Promise<void> {
    const { weights, gradients, firstMoments } = arrays;
    const { learningRate, momentum, weightDecay, gradientScale } = options;
    const lookahead = new Float32Array(weights.length);
    for (let i = 0; i < weights.length; i++) {
      const gradient = (gradients[i] ?? 0) * gradientScale;
      const moved = momentum * (firstMoments[i] ?? 0) + (1 - momentum) * gradient;
      firstMoments[i] = moved;
      lookahead[i] = momentum * moved + (1 - momentum) * gradient;
    }
    const direction = await this.#orthogonal(lookahead, shape);
    const [rows = 1, columns = 1] = shape;
    const rate = learningRate * Math.sqrt(Math.max(1, rows / columns));
    const decay = 1 - learningRate * weightDecay;
    for (let i = 0; i < weights.length; i++) weights[i] = (weights[i] ?? 0) * decay - rate * (direction[i] ?? 0);
  }

  async #orthogonal(matrix: Float32Array, shape: readonly number[]): Promise<Float32Array> {
    const [rows = 1, columns = 1] = shape;
    this.#session ??= openSession(newtonSchulzGraph(), this.#threads);
    const session = await this.#session;
    // The iteration multiplies by x·xᵀ, so the short side comes first.
    const tall = rows > columns;
    const input = tall ? transpose(matrix, rows, columns) : matrix;
    const dims = tall ? [columns, rows] : [rows, columns];
    const { y } = await session.run({ x: new Tensor("float32", input, dims) });
    if (!(y?.data instanceof Float32Array)) throw new FulgurError("ERR_INTERNAL", "Newton–Schulz gave no result.");
    return tall ? transpose(y.data, columns, rows) : y.data;
  }
}

/** x [a, b], a ≤ b → the nearest matrix with singular values near 1, by five quintic Newton–Schulz iterations. */
function newtonSchulzGraph(): Uint8Array {
  const graph = new GraphBuilder("newton-schulz");
  const input = graph.input("x", "float32", ["a", "b"]);
  const norm = graph.node("ReduceL2", [input], { keepdims: int(0) });
  let x = graph.node("Div", [input, graph.node("Add", [norm, graph.scalar(1e-7)])]);
  const [a, b, c] = [3.4445, -4.775, 2.0315];
  for (let i = 0; i < 5; i++) {
    const square = graph.node("Gemm", [x, x], { transB: int(1) });
    const mixed = graph.node("Gemm", [square, square, square], { alpha: float(c), beta: float(b) });
    x = graph.node("Gemm", [mixed, x, x], { alpha: float(1), beta: float(a) });
  }
  graph.output(x, "float32", ["a", "b"], "y");
  return graph.toBytes();
}

function transpose(matrix: Float32Array, rows: number, columns: number): Float32Array {
  const result = new Float32Array(matrix.length);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) result[c * rows + r] = matrix[r * columns + c] ?? 0;
  }
  return result;
}
