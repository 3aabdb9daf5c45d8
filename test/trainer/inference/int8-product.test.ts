import { InferenceSession, Tensor } from "onnxruntime-node";
import { expect, test } from "vitest";
import { GraphBuilder } from "../../../trainer/engine/onnx/graph.ts";
import { int8Product, quantiseWeight } from "../../../trainer/inference/int8-product.ts";
import { randomNumbers } from "./tiny-model.ts";

test("each column has 127 steps to its largest value on both sides, and rounds to the nearest", () => {
  // [2, 3]: columns (2, -0.9), (0, 0), (-0.5, 0.127).
  const weight = Float32Array.of(2, 0, -0.5, -0.9, 0, 0.127);
  const { bytes, scales } = quantiseWeight({ weight, inputs: 2, outputs: 3 });
  expect([...bytes]).toEqual([255, 128, 1, 71, 128, 160]);
  expect([...scales].map((scale) => scale * 127)).toEqual([expect.closeTo(2, 6), 0, expect.closeTo(0.5, 6)]);
});

test("products are those of the rounded numbers, exact also where 16 bits would overflow", async () => {
  const inputs = 96;
  const outputs = 40;
  const random = randomNumbers(9);
  // Rows of largest values: 96 · 255 · 255 does not fit a sum of 16 bits.
  const weight = Float32Array.from({ length: inputs * outputs }, (_, i) => (i % outputs < 8 ? 1 : random()));
  const rows = [
    Float32Array.from({ length: inputs }, () => 1),
    Float32Array.from({ length: inputs }, () => -1),
    Float32Array.from({ length: inputs }, () => 100 * random()),
    new Float32Array(inputs),
  ];
  const { bytes, scales } = quantiseWeight({ weight, inputs, outputs });
  const product = await multiply(weight, rows);
  for (const [r, row] of rows.entries()) {
    const scale = Math.fround(Math.fround(1 / 127) * row.reduce((most, value) => Math.max(most, Math.abs(value)), 0));
    for (let o = 0; o < outputs; o++) {
      let sum = 0;
      for (let i = 0; i < inputs; i++) {
        const value = scale === 0 ? 0 : Math.round((row[i] ?? NaN) / scale);
        sum += value * ((bytes[i * outputs + o] ?? NaN) - 128);
      }
      // Integers are exact; the two scales are float32.
      expect(product[r]?.[o]).toBeCloseTo(sum * scale * (scales[o] ?? NaN), 3);
    }
  }
  expect(product[0]?.[0]).toBeCloseTo(96, 3);
  expect(product[1]?.[0]).toBeCloseTo(-96, 3);
  expect(product[3]).toEqual(Array(outputs).fill(0));

  async function multiply(matrix: Float32Array, inputRows: readonly Float32Array[]): Promise<number[][]> {
    const graph = new GraphBuilder("product");
    const x = graph.input("x", "float32", ["rows", inputs]);
    const linear = { inputs, outputs, weight: matrix, bias: null, delta: null };
    graph.output(int8Product(graph, x, "weight", linear), "float32", ["rows", outputs], "y");
    const session = await InferenceSession.create(graph.toBytes(), { intraOpNumThreads: 1, logSeverityLevel: 3 });
    const data = Float32Array.from(inputRows.flatMap((row) => [...row]));
    const { y } = await session.run({ x: new Tensor("float32", data, [inputRows.length, inputs]) });
    await session.release();
    const values = y?.data;
    if (!(values instanceof Float32Array)) throw new TypeError("no float32 product");
    return inputRows.map((_, r) => [...values.subarray(r * outputs, (r + 1) * outputs)]);
  }
});
