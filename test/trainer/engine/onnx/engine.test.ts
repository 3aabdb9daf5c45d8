import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import * as z from "zod";
import type { Engine, Sample } from "../../../../trainer/engine/contract.ts";
import { createOnnxEngine } from "../../../../trainer/engine/onnx/engine.ts";
import { openSafetensors, readSafetensors } from "../../../../trainer/model/safetensors.ts";
import { engineContract, sampleOf } from "../../../contract/engine.ts";
import { findPython, runOracle } from "../../../oracle/python.ts";

const modelOf = (family: string): string =>
  fileURLToPath(new URL(`../../../oracle/fixtures/engine/${family}`, import.meta.url));

const ENGINE = new URL("../../../../trainer/engine/onnx/engine.ts", import.meta.url).href;
/** Its graphs take a moment to make. */
const FLIGHT = fileURLToPath(new URL("../../../../models/flight", import.meta.url));

engineContract("onnx", {
  make: (type) =>
    createOnnxEngine({
      modelDir: modelOf("qwen3"),
      method: type === "lora" ? { type, rank: 4 } : { type },
      threads: 2,
    }),
  // Matrix products of other heights are summed in other blocks.
  batchTolerance: 2e-6,
});

let dir = "";
let engines: Engine[] = [];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-onnx-"));
});
afterEach(async () => {
  await Promise.all(engines.map((engine) => engine.close()));
  engines = [];
  await rm(dir, { recursive: true, force: true });
});
async function make(...options: Parameters<typeof createOnnxEngine>): Promise<Engine> {
  const engine = await createOnnxEngine(...options);
  engines.push(engine);
  return engine;
}

const sample = sampleOf(12, [2, 3, 7, 11]);
async function train(engine: Engine, steps: number, samples: readonly Sample[] = [sample]): Promise<void> {
  for (let i = 0; i < steps; i++) {
    await engine.backward(
      samples,
      samples.map(({ tokens }) => ({ dLogprobs: new Float32Array(tokens.length).fill(-1) })),
    );
    await engine.step({ learningRate: 0.01, maxGradNorm: 1 });
  }
}
const targetScores = async (engine: Engine): Promise<number[]> => {
  const [scores] = await engine.score([sample]);
  return [2, 3, 7, 11].map((t) => scores?.logprobs[t] ?? NaN);
};
const expectNear = (actual: readonly number[], expected: readonly number[]): void => {
  expect(actual).toHaveLength(expected.length);
  for (const [i, value] of expected.entries()) expect(actual[i]).toBeCloseTo(value, 4);
};

describe("exports", () => {
  test("an adapter carries PEFT's names and goes on where training stopped", async () => {
    const engine = await make({ modelDir: modelOf("llama"), method: { type: "lora", rank: 4, alpha: 8 } });
    await train(engine, 3);
    const out = join(dir, "adapter");
    await engine.exportAdapter(out);
    const config = z
      .object({ peft_type: z.string(), r: z.number(), lora_alpha: z.number(), target_modules: z.array(z.string()) })
      .parse(JSON.parse(await readFile(join(out, "adapter_config.json"), "utf8")));
    expect(config).toMatchObject({ peft_type: "LORA", r: 4, lora_alpha: 8 });
    expect(config.target_modules).toEqual([
      "q_proj",
      "k_proj",
      "v_proj",
      "o_proj",
      "gate_proj",
      "up_proj",
      "down_proj",
    ]);
    const file = await openSafetensors(join(out, "adapter_model.safetensors"));
    expect(file.names).toHaveLength(2 * 2 * 7);
    expect(file.shapeOf("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight")).toEqual([4, 24]);
    expect(file.shapeOf("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight")).toEqual([16, 4]);
    await file.close();
    const again = await make({
      modelDir: modelOf("llama"),
      method: { type: "lora", rank: 4, alpha: 8, adapterDir: out },
    });
    expect(await targetScores(again)).toEqual(await targetScores(engine));
  });

  test("a merged model scores as its adapter did, and a full one as it did", async () => {
    const lora = await make({ modelDir: modelOf("qwen2"), method: { type: "lora", rank: 4, alpha: 8 } });
    await train(lora, 3);
    await lora.exportWeights(join(dir, "merged"));
    const full = await make({ modelDir: join(dir, "merged"), method: { type: "full" } });
    expectNear(await targetScores(full), await targetScores(lora));
    await train(full, 2);
    await full.exportWeights(join(dir, "full"));
    const again = await make({ modelDir: join(dir, "full"), method: { type: "full" } });
    expect(await targetScores(again)).toEqual(await targetScores(full));
  });

  const python = findPython();
  test.skipIf(python === null)("transformers and peft open them and score the same", { timeout: 120_000 }, async () => {
    if (python === null) return;
    const outcome = z.object({ logprobs: z.array(z.number()), missing: z.array(z.string()) });
    const scoresIn = (args: readonly string[]): number[] => {
      const text = runOracle(python, "open_exports.py", args, JSON.stringify({ tokens: [...sample.tokens] }));
      const { logprobs, missing } = outcome.parse(JSON.parse(text));
      expect(missing).toEqual([]);
      return [2, 3, 7, 11].map((t) => logprobs[t - 1] ?? NaN);
    };
    const engine = await make({ modelDir: modelOf("qwen3"), method: { type: "lora", rank: 4 } });
    await train(engine, 3);
    await engine.exportAdapter(join(dir, "adapter"));
    await engine.exportWeights(join(dir, "merged"));
    expectNear(scoresIn([modelOf("qwen3"), join(dir, "adapter")]), await targetScores(engine));
    expectNear(scoresIn([join(dir, "merged")]), await targetScores(engine));
  });
});

describe("options", () => {
  test("temperature divides the logits", async () => {
    const cold = await make({ modelDir: modelOf("llama"), temperature: 0.01 });
    const hot = await make({ modelDir: modelOf("llama"), temperature: 1e4 });
    const [coldScores] = await cold.score([sample]);
    const [hotScores] = await hot.score([sample]);
    // 23 tokens: nearly uniform when hot, nearly certain when cold.
    expect(hotScores?.entropy[7]).toBeCloseTo(Math.log(23), 3);
    expect(coldScores?.entropy[7]).toBeLessThan(0.01);
  });

  test("a fresh adapter changes nothing, and its seed fixes its gradient", async () => {
    const base = await make({ modelDir: modelOf("qwen3"), method: { type: "full" } });
    const norms: number[] = [];
    for (const seed of [5, 5, 6]) {
      const engine = await make({ modelDir: modelOf("qwen3"), method: { type: "lora", seed } });
      expectNear(await targetScores(engine), await targetScores(base));
      await engine.backward([sample], [{ dLogprobs: new Float32Array(12).fill(-1) }]);
      norms.push((await engine.step({ learningRate: 0, maxGradNorm: 1 })).gradNorm);
    }
    expect(norms[0]).toBe(norms[1]);
    expect(norms[0]).not.toBe(norms[2]);
  });

  test("only the targeted layers get an adapter, also where layers share a product", async () => {
    const engine = await make({
      modelDir: modelOf("llama"),
      method: { type: "lora", rank: 2, targets: ["v_proj", "up_proj"] },
    });
    // 2 layers · rank 2 · (16 + 8 for v, 16 + 24 for up).
    expect(engine.info.parameters.trained).toBe(2 * 2 * (16 + 8 + 16 + 24));
    const before = await targetScores(engine);
    await train(engine, 5);
    const after = await targetScores(engine);
    expect(Math.max(...after.map((value, i) => value - (before[i] ?? 0)))).toBeGreaterThan(0.01);
    await engine.exportAdapter(join(dir, "adapter"));
    const tensors = await readSafetensors(join(dir, "adapter", "adapter_model.safetensors"));
    expect([...tensors.keys()].every((name) => /(v|up)_proj\.lora_[AB]\.weight$/.test(name))).toBe(true);
    for (const { data } of tensors.values()) expect(data.some((value) => value !== 0)).toBe(true);
  });

  test("Muon moves the layers' matrices by steps of one size in every direction, and trains", async () => {
    const engine = await make({ modelDir: modelOf("qwen3"), method: { type: "full" }, optimizer: { type: "muon" } });
    const before = await targetScores(engine);
    await train(engine, 1);
    await engine.exportWeights(join(dir, "moved"));
    const name = "model.layers.0.mlp.gate_proj.weight";
    const [from, to] = await Promise.all(
      [modelOf("qwen3"), join(dir, "moved")].map(async (at) =>
        (await readSafetensors(join(at, "model.safetensors"))).get(name),
      ),
    );
    const moved = Math.hypot(...Array.from(to?.data ?? [], (value, i) => value - (from?.data[i] ?? NaN)));
    // [24, 16]: a step of rate·√(24/16) times a matrix with up to 16 singular values, each between 0.5 and 1.3
    // where the gradient has that direction at all; four targets give at least four.
    const rate = 0.01 * Math.sqrt(24 / 16);
    expect(moved).toBeGreaterThan(rate * 0.5 * 2);
    expect(moved).toBeLessThan(rate * 1.3 * 4);
    await train(engine, 4);
    const after = await targetScores(engine);
    expect(sum(after)).toBeGreaterThan(sum(before) + 0.5);
  });

  test.each([
    [{ modelDir: modelOf("llama"), threads: 0 }, "ERR_CONFIG", /threads/],
    [{ modelDir: modelOf("llama"), temperature: -1 }, "ERR_CONFIG", /temperature/],
    [{ modelDir: "/nonexistent" }, "ERR_MODEL", /config\.json/],
  ])("%j is refused with %s", async (options, code, message) => {
    await expect(createOnnxEngine(options)).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
  });
});

test.each(["llama", "qwen2", "qwen3"])(
  "frozen weights that are read where they lie give what constants give: %s",
  async (family) => {
    const adapters: Float32Array[][] = [];
    const scores: number[][] = [];
    for (const frozenAsInputs of [false, true]) {
      const engine = await make({
        modelDir: modelOf(family),
        method: { type: "lora", rank: 4, targets: ["q_proj", "v_proj", "gate_proj", "down_proj"] },
        frozenAsInputs,
        valueHead: true,
      });
      await train(engine, 3);
      scores.push(await targetScores(engine));
      const out = join(dir, `adapter-${frozenAsInputs}`);
      await engine.exportAdapter(out);
      adapters.push([...(await readSafetensors(join(out, "adapter_model.safetensors"))).values()].map((t) => t.data));
    }
    expectNear(scores[1] ?? [], scores[0] ?? []);
    const [constants = [], inputs = []] = adapters;
    expect(constants.length).toBeGreaterThan(0);
    for (const [i, values] of constants.entries()) {
      expect(values.some((value) => value !== 0)).toBe(true);
      expectNear([...(inputs[i] ?? [])], [...values]);
    }
  },
);

test.each([
  ["llama", "lora"],
  ["qwen2", "full"],
  ["qwen3", "lora"],
  ["llama", "full"],
] as const)("what is computed again and in parts gives what is kept gives: %s, %s", async (family, type) => {
  // Rows of several lengths and enough targets for every part of the head.
  const samples = [sampleOf(12, [2, 3, 5, 7, 11]), sampleOf(9, [1, 4, 6, 8]), sampleOf(5, [1, 4])];
  const cotangents = samples.map(({ tokens }, i) => ({
    dLogprobs: Float32Array.from(tokens, (_, t) => Math.sin(i + t)),
    dEntropy: Float32Array.from(tokens, (_, t) => 0.1 * Math.cos(i + t)),
    dValues: Float32Array.from(tokens, (_, t) => 0.2 * Math.cos(i - t)),
  }));
  const found: { scores: number[]; norms: number[]; after: number[] }[] = [];
  for (const maxActivationBytes of [2 ** 32, 0]) {
    const method = type === "lora" ? ({ type, rank: 4 } as const) : ({ type } as const);
    const engine = await make({ modelDir: modelOf(family), method, valueHead: true, maxActivationBytes });
    const norms: number[] = [];
    let scores: number[] = [];
    for (let step = 0; step < 3; step++) {
      const results = await engine.backward(samples, cotangents);
      scores = results.flatMap(({ logprobs, entropy, values }) => [...logprobs, ...entropy, ...(values ?? [])]);
      norms.push((await engine.step({ learningRate: 0.01, maxGradNorm: 1 })).gradNorm);
    }
    const after = (await engine.score(samples)).flatMap(({ logprobs, entropy }) => [...logprobs, ...entropy]);
    found.push({ scores, norms, after });
  }
  const [kept, again] = found;
  expect(kept?.norms.every((norm) => norm > 0.01)).toBe(true);
  expectNear(again?.norms ?? [], kept?.norms ?? []);
  expectNear(again?.scores ?? [], kept?.scores ?? []);
  expectNear(again?.after ?? [], kept?.after ?? []);
});

test("replicas share the work without changing the result", async () => {
  const samples = Array.from({ length: 9 }, (_, i) => sampleOf(4 + i, [1, 3 + i]));
  const norms: number[] = [];
  const scores: number[][] = [];
  for (const replicas of [1, 2, 3]) {
    const engine = await make({
      modelDir: modelOf("llama"),
      method: { type: "full" },
      threads: 3,
      replicas,
      maxTokensPerMicrobatch: 16,
    });
    const results = await engine.backward(
      samples,
      samples.map(({ tokens }) => ({ dLogprobs: new Float32Array(tokens.length).fill(-1) })),
    );
    scores.push(results.flatMap(({ logprobs }) => [...logprobs]));
    norms.push((await engine.step({ learningRate: 0.01, maxGradNorm: 1 })).gradNorm);
  }
  expect(norms[1]).toBeCloseTo(norms[0] ?? NaN, 3);
  expect(norms[2]).toBeCloseTo(norms[0] ?? NaN, 3);
  expectNear(scores[1] ?? [], scores[0] ?? []);
  expectNear(scores[2] ?? [], scores[0] ?? []);
});

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

test("may be closed at any moment after it was opened, while its graphs are still being made too", async () => {
  // ONNX Runtime ends the whole process where a thread is ended in the middle of its work, so it is another one.
  const script = `
    import { setTimeout as pause } from "node:timers/promises";
    import { createOnnxEngine } from ${JSON.stringify(ENGINE)};
    for (let ms = 0; ms < 300; ms += 12) {
      const engine = await createOnnxEngine({ modelDir: ${JSON.stringify(FLIGHT)}, method: { type: "lora" } });
      await pause(ms);
      await engine.close();
    }
    console.log("closed");`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--eval", script]);
  expect(stdout).toBe("closed\n");
});
