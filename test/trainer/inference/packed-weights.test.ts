import { InferenceSession } from "onnxruntime-node";
import { expect, test } from "vitest";
import { buildDecodeGraph } from "../../../trainer/inference/decode-graph.ts";
import { Decoder } from "../../../trainer/inference/decoder.ts";
import { createLoraMerger } from "../../../trainer/inference/lora-merger.ts";
import { type LoraDelta, packWeights, withLora } from "../../../trainer/inference/packed-weights.ts";
import { parseArchitecture, ropeTables, weightShapes } from "../../../trainer/model/architecture.ts";
import type { Tensor } from "../../../trainer/model/safetensors.ts";
import { argmax, referenceLogprobs } from "./reference-forward.ts";
import { randomNumbers } from "./tiny-model.ts";

const architecture = parseArchitecture({
  model_type: "qwen2",
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  vocab_size: 61,
  max_position_embeddings: 64,
});
const random = randomNumbers(3);
const tensor = (shape: readonly number[], scale: number): Tensor => ({
  shape,
  data: Float32Array.from({ length: shape.reduce((product, size) => product * size, 1) }, () => scale * random()),
});
const weights = new Map([...weightShapes(architecture)].map(([name, shape]) => [name, tensor(shape, 0.4)]));

test("layers side by side are each layer transposed, in order, with the attention scale in the queries", () => {
  const { qkv } = packWeights(architecture, weights).layers[1] ?? {};
  const query = weights.get("model.layers.1.self_attn.q_proj.weight")?.data ?? [];
  const value = weights.get("model.layers.1.self_attn.v_proj.weight")?.data ?? [];
  const bias = weights.get("model.layers.1.self_attn.q_proj.bias")?.data ?? [];
  const scale = Math.sqrt(1 / 8);
  // [32, 32 + 16 + 16]: row 5 is input 5; query output 7, value output 9.
  expect(qkv?.weight[5 * 64 + 7]).toBeCloseTo(scale * (query[7 * 32 + 5] ?? NaN), 6);
  expect(qkv?.weight[5 * 64 + 48 + 9]).toBe(value[9 * 32 + 5]);
  expect(qkv?.bias?.[7]).toBeCloseTo(scale * (bias[7] ?? NaN), 6);
});

test("an adapter on some layers answers as the weights W + scale · B·A would", async () => {
  const lora = new Map<string, LoraDelta>();
  const merged = new Map(weights);
  for (const layer of ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"]) {
    const name = `model.layers.1.${layer}`;
    const base = weights.get(`${name}.weight`) ?? tensor([0, 0], 0);
    const [out = 0, input = 0] = base.shape;
    const a = tensor([3, input], 0.5);
    const b = tensor([out, 3], 0.5);
    lora.set(name, { a, b, scale: 2 });
    const data = base.data.map((value, i) => {
      const o = Math.floor(i / input);
      const column = i % input;
      return [0, 1, 2].reduce(
        (sum, r) => sum + 2 * (b.data[o * 3 + r] ?? NaN) * (a.data[r * input + column] ?? NaN),
        value,
      );
    });
    merged.set(`${name}.weight`, { shape: base.shape, data });
  }
  const base = packWeights(architecture, weights);
  const merger = await createLoraMerger();
  const graph = buildDecodeGraph(architecture, await merger.merge(withLora(architecture, base, lora)), {
    rope: ropeTables(architecture, 64),
    precision: "fp32",
  });
  const session = await InferenceSession.create(graph, { intraOpNumThreads: 1, logSeverityLevel: 3 });
  const decoder = new Decoder(session, architecture, {
    maxSequences: 1,
    prefixCacheBytes: 0,
    prefillTokensPerStep: 64,
  });
  const prompt = [4, 8, 15, 16, 23, 42];
  const sampling = { temperature: 0, topP: 1, topK: 0, seed: 0 };
  decoder.submit({
    id: 0,
    prompt: Int32Array.from(prompt),
    maxTokens: 8,
    sampling,
    adjustments: null,
    stopIds: [],
    topLogprobs: 0,
  });
  const tokens = [...prompt];
  const logprobs: number[] = [];
  while (
    await decoder.step(({ token, logprob }) => {
      tokens.push(token);
      logprobs.push(logprob);
    })
  );
  const rows = referenceLogprobs(architecture, merged, tokens).slice(prompt.length - 1, -1);
  expect(tokens.slice(prompt.length)).toEqual(rows.map(argmax));
  // float32 against float64 over two layers.
  for (const [i, logprob] of logprobs.entries())
    expect(Math.abs(logprob - Math.max(...(rows[i] ?? [])))).toBeLessThan(2e-5);
  await decoder.close();
});
