import { InferenceSession } from "onnxruntime-node";
import { describe, expect, test } from "vitest";
import type { ServePrecision } from "../../../trainer/inference/config.ts";
import { buildDecodeGraph } from "../../../trainer/inference/decode-graph.ts";
import { Decoder, type SampledToken, type SequenceRequest } from "../../../trainer/inference/decoder.ts";
import type { LogitAdjustments } from "../../../trainer/inference/logit-rules.ts";
import { packWeights } from "../../../trainer/inference/packed-weights.ts";
import type { SamplingOptions } from "../../../trainer/inference/sampling.ts";
import { type Architecture, parseArchitecture, ropeTables, weightShapes } from "../../../trainer/model/architecture.ts";
import type { Tensor } from "../../../trainer/model/safetensors.ts";
import { argmax, referenceLogprobs } from "./reference-forward.ts";
import { randomNumbers } from "./tiny-model.ts";

const GREEDY: SamplingOptions = { temperature: 0, topP: 1, topK: 0, seed: 0 };
const base = {
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  vocab_size: 61,
  max_position_embeddings: 256,
};
const llama3Rope = {
  rope_type: "llama3",
  factor: 4,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 32,
};
const MODELS: Readonly<Record<string, Record<string, unknown>>> = {
  "Llama, tied, grouped": { ...base, model_type: "llama", num_key_value_heads: 2, tie_word_embeddings: true },
  "Llama, untied, stretched rotation, all biases": {
    ...base,
    model_type: "llama",
    rope_scaling: llama3Rope,
    attention_bias: true,
    mlp_bias: true,
  },
  "Qwen2, one key head": { ...base, model_type: "qwen2", num_key_value_heads: 1 },
  "Qwen3, wide heads": {
    ...base,
    model_type: "qwen3",
    num_key_value_heads: 2,
    head_dim: 16,
    tie_word_embeddings: true,
  },
};

describe.each(Object.entries(MODELS))("%s", (_, config) => {
  test("a greedy answer takes the argmax of the full forward, with its log-probability", async () => {
    const { architecture, weights, decoder } = await makeDecoder(config);
    // Longer than two chunks, so that chunked reading, the cache and decoding all take part.
    const prompt = Array.from({ length: 70 }, (_, i) => (i * i + 3) % 61);
    const [answer = []] = await sample(decoder, [{ prompt, maxTokens: 12, sampling: GREEDY }]);
    expect(answer).toHaveLength(12);
    const tokens = [...prompt, ...answer.map(({ token }) => token)];
    const expected = referenceLogprobs(architecture, weights, tokens).slice(prompt.length - 1, -1);
    expect(answer.map(({ token }) => token)).toEqual(expected.map(argmax));
    for (const [i, { token, logprob }] of answer.entries()) {
      // float32 against float64 over two layers; observed differences are below 2e-6.
      expect(Math.abs(logprob - (expected[i]?.[token] ?? NaN))).toBeLessThan(2e-5);
    }
    await decoder.close();
  });
});

test("sampled log-probabilities are those of the scaled distribution", async () => {
  const { architecture, weights, decoder } = await makeDecoder(MODELS["Qwen3, wide heads"] ?? {});
  const prompt = [5, 9, 2, 40];
  const sampling = { temperature: 0.7, topP: 1, topK: 0, seed: 11 };
  const [answer = []] = await sample(decoder, [{ prompt, maxTokens: 8, sampling }]);
  const tokens = [...prompt, ...answer.map(({ token }) => token)];
  const rows = referenceLogprobs(architecture, weights, tokens).slice(prompt.length - 1, -1);
  for (const [i, { token, logprob }] of answer.entries()) {
    const scaled = (rows[i] ?? []).map((value) => value / 0.7);
    const total = Math.log(scaled.reduce((sum, value) => sum + Math.exp(value), 0));
    expect(Math.abs(logprob - ((scaled[token] ?? NaN) - total))).toBeLessThan(2e-5);
  }
  await decoder.close();
});

test.each(Object.entries(MODELS))(
  "int8: log-probabilities are near those of the full forward: %s",
  async (_, config) => {
    const { architecture, weights, decoder } = await makeDecoder(config, { precision: "int8" });
    const prompt = Array.from({ length: 40 }, (__, i) => (i * i + 3) % 61);
    const [answer = []] = await sample(decoder, [{ prompt, maxTokens: 12, sampling: { ...GREEDY, temperature: 1 } }]);
    const tokens = [...prompt, ...answer.map(({ token }) => token)];
    const rows = referenceLogprobs(architecture, weights, tokens).slice(prompt.length - 1, -1);
    const errors = answer.map(({ token, logprob }, i) => Math.abs(logprob - (rows[i]?.[token] ?? NaN)));
    // Steps of 1/127 of a column's and of a token's largest value; a wrong scale or zero would be off by whole nats.
    expect(Math.max(...errors)).toBeLessThan(0.2);
    expect(Math.max(...errors)).toBeGreaterThan(1e-4);
    await decoder.close();
  },
);

test("penalties and bias change the logits before the temperature, and log-probabilities are of what was drawn from", async () => {
  const { architecture, weights, decoder } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const prompt = [5, 9, 2, 40];
  const adjustments: LogitAdjustments = {
    frequencyPenalty: 0.6,
    presencePenalty: 0.9,
    bias: [
      [7, 1.5],
      [8, -100],
    ],
  };
  const sampling = { temperature: 0.7, topP: 1, topK: 0, seed: 11 };
  const [answer = []] = await sample(decoder, [{ prompt, maxTokens: 30, sampling, adjustments }]);
  const drawn = answer.map(({ token }) => token);
  const rows = referenceLogprobs(architecture, weights, [...prompt, ...drawn]).slice(prompt.length - 1, -1);
  expect(new Set(drawn).size).toBeLessThan(drawn.length);
  for (const [i, { token, logprob }] of answer.entries()) {
    const before = drawn.slice(0, i);
    const scores = (rows[i] ?? []).map((value, v) => {
      const count = before.filter((each) => each === v).length;
      const bias = v === 7 ? 1.5 : v === 8 ? -100 : 0;
      return (value + bias - 0.6 * count - (count > 0 ? 0.9 : 0)) / 0.7;
    });
    const total = Math.log(scores.reduce((sum, score) => sum + Math.exp(score), 0));
    // float32 against float64, and a division by the temperature.
    expect(Math.abs(logprob - ((scores[token] ?? NaN) - total))).toBeLessThan(4e-5);
  }
  await decoder.close();
});

test.each(["fp32", "int8"] as const)(
  "%s: an answer is the same bits alone and among others, whatever their number and lengths",
  async (precision) => {
    const { decoder: alone } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {}, { precision });
    const { decoder: together } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {}, { precision });
    const requests = Array.from({ length: 9 }, (_, i) => ({
      prompt: Array.from({ length: 1 + 13 * i }, (__, j) => (j * 7 + i) % 61),
      maxTokens: 5 + 9 * (i % 3),
      sampling: { temperature: 1, topP: 1, topK: 0, seed: i },
    }));
    const separate: SampledToken[][] = [];
    for (const request of requests) separate.push(...(await sample(alone, [request])));
    const joint = await sample(together, requests);
    const bits = (answers: SampledToken[][]): [number, number][][] =>
      answers.map((answer) => answer.map(({ token, logprob }) => [token, logprob]));
    expect(bits(joint)).toEqual(bits(separate));
    await Promise.all([alone.close(), together.close()]);
  },
);

test("a step that is interrupted goes on where it stood, and the answer is the same", async () => {
  const { decoder } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const prompt = Array.from({ length: 75 }, (_, i) => (i * 5) % 61);
  const request = { prompt, maxTokens: 6, sampling: { temperature: 1, topP: 1, topK: 0, seed: 4 } };
  const [whole = []] = await sample(decoder, [request]);
  const { decoder: other } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const emitted: SampledToken[] = [];
  other.submit(complete(0, request));
  const emit = (token: SampledToken): void => {
    emitted.push(token);
  };
  expect(await other.step(emit, () => true)).toBe(true);
  // Two chunks of the prompt at a time, or one token of the answer.
  for (let steps = 0; emitted.at(-1)?.finish !== "length"; steps++) {
    expect(steps).toBeLessThan(20);
    let asked = 0;
    await other.step(emit, () => ++asked > 2);
  }
  expect(emitted.map(({ token, logprob }) => [token, logprob])).toEqual(
    whole.map(({ token, logprob }) => [token, logprob]),
  );
  await Promise.all([decoder.close(), other.close()]);
});

test("a prefix from the cache gives the same bits as reading it, and is counted", async () => {
  const { decoder } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const prompt = Array.from({ length: 75 }, (_, i) => (i * 5) % 61);
  const request = { prompt, maxTokens: 6, sampling: { temperature: 1, topP: 1, topK: 0, seed: 4 } };
  const [first = []] = await sample(decoder, [request]);
  const [second = []] = await sample(decoder, [request]);
  expect(first[0]?.cachedTokens).toBe(0);
  expect(second[0]?.cachedTokens).toBe(64);
  expect(second.map(({ token, logprob }) => [token, logprob])).toEqual(
    first.map(({ token, logprob }) => [token, logprob]),
  );
  await decoder.close();
});

test("a cancelled sequence frees its row and leaves the others untouched", async () => {
  const { decoder } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const { decoder: undisturbed } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const requests = [1, 2, 3].map((seed) => ({
    prompt: [seed, 2 * seed, 3],
    maxTokens: 10,
    sampling: { temperature: 1, topP: 1, topK: 0, seed },
  }));
  const expected = await sample(undisturbed, requests);
  for (const [id, request] of requests.entries()) decoder.submit(complete(id, request));
  const tokens = new Map<number, number[]>();
  let steps = 0;
  while (await decoder.step(({ id, token }) => tokens.set(id, [...(tokens.get(id) ?? []), token]))) {
    if (++steps === 3) {
      decoder.cancel(0);
      expect(decoder.running).toBe(2);
    }
  }
  expect(tokens.get(1)).toEqual(expected[1]?.map(({ token }) => token));
  expect(tokens.get(2)).toEqual(expected[2]?.map(({ token }) => token));
  expect(tokens.get(0)?.length).toBeLessThan(10);
  await Promise.all([decoder.close(), undisturbed.close()]);
});

test("sequences beyond the batch wait for a row and are then answered", async () => {
  const { decoder } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {}, { maxSequences: 2 });
  const requests = Array.from({ length: 5 }, (_, seed) => ({ prompt: [seed], maxTokens: 4, sampling: GREEDY }));
  for (const [id, request] of requests.entries()) decoder.submit(complete(id, request));
  let most = 0;
  const finished: number[] = [];
  while (
    await decoder.step(({ id, finish }) => {
      most = Math.max(most, decoder.running);
      if (finish !== null) finished.push(id);
    })
  );
  expect(most).toBe(2);
  expect(finished.toSorted((a, b) => a - b)).toEqual([0, 1, 2, 3, 4]);
  await decoder.close();
});

test("a stop id ends an answer and is part of it", async () => {
  const { decoder } = await makeDecoder(MODELS["Llama, tied, grouped"] ?? {});
  const [free = []] = await sample(decoder, [{ prompt: [3, 1], maxTokens: 6, sampling: GREEDY }]);
  const third = free[2]?.token ?? -1;
  const firstAt = free.findIndex(({ token }) => token === third);
  const [stopped = []] = await sample(decoder, [{ prompt: [3, 1], maxTokens: 6, sampling: GREEDY, stopIds: [third] }]);
  expect(stopped.map(({ token }) => token)).toEqual(free.slice(0, firstAt + 1).map(({ token }) => token));
  expect(stopped.at(-1)?.finish).toBe("stop");
  await decoder.close();
});

interface TestRequest {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly sampling: SamplingOptions;
  readonly stopIds?: readonly number[];
  readonly adjustments?: LogitAdjustments;
}

function complete(id: number, request: TestRequest): SequenceRequest {
  const { prompt, maxTokens, sampling, stopIds = [], adjustments = null } = request;
  return { id, prompt: Int32Array.from(prompt), maxTokens, sampling, adjustments, stopIds, topLogprobs: 0 };
}

async function sample(decoder: Decoder, requests: readonly TestRequest[]): Promise<SampledToken[][]> {
  const answers = requests.map((): SampledToken[] => []);
  for (const [id, request] of requests.entries()) decoder.submit(complete(id, request));
  while (await decoder.step((token) => answers[token.id]?.push(token)));
  return answers;
}

async function makeDecoder(
  config: Record<string, unknown>,
  { maxSequences = 16, precision = "fp32" }: { maxSequences?: number; precision?: ServePrecision } = {},
): Promise<{ architecture: Architecture; weights: Map<string, Tensor>; decoder: Decoder }> {
  const architecture = parseArchitecture(config);
  const random = randomNumbers(5);
  const weights = new Map<string, Tensor>();
  for (const [name, shape] of weightShapes(architecture)) {
    const length = shape.reduce((product, size) => product * size, 1);
    const isNorm = name.includes("norm");
    weights.set(name, { shape, data: Float32Array.from({ length }, () => (isNorm ? 1 : 0) + 0.3 * random()) });
  }
  const rope = ropeTables(architecture, 256);
  const graph = buildDecodeGraph(architecture, packWeights(architecture, weights), { rope, precision });
  const session = await InferenceSession.create(graph, { intraOpNumThreads: 1, logSeverityLevel: 3 });
  const options = { maxSequences, prefixCacheBytes: 2 ** 20, prefillTokensPerStep: 64 };
  return { architecture, weights, decoder: new Decoder(session, architecture, options) };
}
