import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import {
  parseArchitecture,
  readArchitecture,
  ropeInverseFrequencies,
  ropeTables,
  weightShapes,
} from "../../../trainer/model/architecture.ts";
import { openModelWeights } from "../../../trainer/model/safetensors.ts";

const LLAMA = {
  model_type: "llama",
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  vocab_size: 100,
};

const modelOf = (family: string): string =>
  fileURLToPath(new URL(`../../oracle/fixtures/engine/${family}`, import.meta.url));

describe("a config.json", () => {
  test("gets transformers' defaults where it is silent", () => {
    expect(parseArchitecture(LLAMA)).toEqual({
      family: "llama",
      layers: 2,
      width: 64,
      heads: 4,
      kvHeads: 4,
      headSize: 16,
      feedForward: 96,
      vocab: 100,
      contextTokens: 2048,
      ropeTheta: 10_000,
      ropeScaling: null,
      rmsEps: 1e-6,
      tied: false,
      attentionBias: false,
      outputBias: false,
      feedForwardBias: false,
      qkNorm: false,
      bosTokenId: null,
      eosTokenIds: [],
      padTokenId: null,
    });
  });

  test("differs by family: biases of Qwen2, head size and q/k norm of Qwen3", () => {
    const qwen2 = parseArchitecture({ ...LLAMA, model_type: "qwen2", mlp_bias: true });
    expect(qwen2).toMatchObject({ attentionBias: true, outputBias: false, feedForwardBias: false, qkNorm: false });
    const qwen3 = parseArchitecture({ ...LLAMA, model_type: "qwen3" });
    expect(qwen3).toMatchObject({ attentionBias: false, qkNorm: true, headSize: 128 });
  });

  test("may give rope in the old and in the new place, and one or many end tokens", () => {
    const old = parseArchitecture({
      ...LLAMA,
      rope_theta: 500,
      rope_scaling: { type: "linear", factor: 2 },
      eos_token_id: 7,
    });
    const now = parseArchitecture({
      ...LLAMA,
      rope_parameters: { rope_type: "linear", rope_theta: 500, factor: 2 },
      eos_token_id: [7],
    });
    expect(now).toEqual(old);
    expect(old).toMatchObject({ ropeTheta: 500, ropeScaling: { type: "linear", factor: 2 }, eosTokenIds: [7] });
  });

  test.each([
    ["another family", { model_type: "gpt2" }, /model_type "gpt2".*llama, qwen2, qwen3/],
    ["a missing size", { hidden_size: undefined }, /hidden_size/],
    ["heads that do not share", { num_key_value_heads: 3 }, /4 is not a multiple of num_key_value_heads 3/],
    ["an odd head", { head_dim: 5 }, /head size 5/],
    ["another activation", { hidden_act: "gelu" }, /"gelu"/],
    ["sliding windows", { use_sliding_window: true }, /sliding_window/],
    ["unknown rope scaling", { rope_scaling: { rope_type: "yarn", factor: 4 } }, /"yarn"/],
    ["half a rope scaling", { rope_scaling: { rope_type: "llama3", factor: 4 } }, /needs low_freq_factor/],
  ])("with %s is refused in one sentence", (_, change, message) => {
    expect(() => parseArchitecture({ ...LLAMA, ...change })).toThrow(
      expect.objectContaining({ code: "ERR_MODEL", message: expect.stringMatching(message) }),
    );
  });

  test("that is missing or not JSON names its path", async () => {
    await expect(readArchitecture("/nonexistent")).rejects.toMatchObject({
      code: "ERR_MODEL",
      message: expect.stringContaining("/nonexistent/config.json"),
    });
    expect(() => parseArchitecture([])).toThrow(expect.objectContaining({ code: "ERR_MODEL" }));
  });
});

test.each(["llama", "qwen2", "qwen3"])("weightShapes are those that transformers writes: %s", async (family) => {
  const shapes = weightShapes(await readArchitecture(modelOf(family)));
  const file = await openModelWeights(modelOf(family));
  const written = Object.fromEntries(file.names.map((name) => [name, file.shapeOf(name)]));
  await file.close();
  expect(Object.fromEntries(shapes)).toEqual(written);
});

describe("rotary frequencies", () => {
  test("fall geometrically from 1, and linear scaling divides them", () => {
    const plain = ropeInverseFrequencies(parseArchitecture({ ...LLAMA, rope_theta: 10_000, head_dim: 4 }));
    expect([...plain]).toEqual([1, 0.01]);
    const linear = ropeInverseFrequencies(
      parseArchitecture({
        ...LLAMA,
        rope_theta: 10_000,
        head_dim: 4,
        rope_scaling: { rope_type: "linear", factor: 4 },
      }),
    );
    expect([...linear]).toEqual([0.25, 0.0025]);
  });

  test("scaled as Llama 3: short waves stay, long ones stretch, those between blend", async () => {
    const config: unknown = JSON.parse(await readFile(`${modelOf("llama")}/config.json`, "utf8"));
    const architecture = parseArchitecture(config);
    expect(architecture.ropeScaling).toMatchObject({ type: "llama3", factor: 4, originalContextTokens: 16 });
    // θ = 500, D = 4: frequencies 1 and 500^-½ = 0.0447; waves 6.28 and 140.5 tokens; limits 16/4 = 4 and 16/1 = 16.
    const [first, second] = ropeInverseFrequencies(architecture);
    const smooth = (16 / (2 * Math.PI) - 1) / (4 - 1);
    expect(first).toBeCloseTo((1 - smooth) / 4 + smooth, 12);
    expect(second).toBeCloseTo(500 ** -0.5 / 4, 12);
  });

  test("tables hold cos and sin of position times frequency", () => {
    const { cos, sin } = ropeTables(parseArchitecture({ ...LLAMA, head_dim: 4 }), 3);
    expect(cos).toHaveLength(6);
    expect(cos[0]).toBe(1);
    expect(cos[4]).toBeCloseTo(Math.cos(2), 6);
    expect(sin[5]).toBeCloseTo(Math.sin(0.02), 6);
  });
});
