import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import * as z from "zod";
import type { Cotangent, Engine, Sample } from "../../../../trainer/engine/contract.ts";
import { createOnnxEngine } from "../../../../trainer/engine/onnx/engine.ts";
import type { OnnxEngineOptions } from "../../../../trainer/engine/options.ts";
import { createTorchEngine } from "../../../../trainer/engine/torch/engine.ts";
import { openSafetensors, readSafetensors } from "../../../../trainer/model/safetensors.ts";
import { findPython, runOracle } from "../../../oracle/python.ts";
import { RecycledWorkers } from "./recycled.ts";

/** The two engines give the same numbers, and what one has written the other goes on with. */

const fixture = (name: string): string => fileURLToPath(new URL(`../../../oracle/fixtures/${name}`, import.meta.url));
const modelOf = (family: string): string => fixture(`engine/${family}`);

const python = findPython();
const workers = new RecycledWorkers();
let dir = "";
let engines: Engine[] = [];
// A process takes seconds to import PyTorch, and the first test would pay for it.
beforeAll(async () => {
  if (python !== null) await (await make("torch", { modelDir: modelOf("llama") })).close();
}, 300_000);
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-engines-"));
});
afterEach(async () => {
  await Promise.all(engines.map((engine) => engine.close()));
  engines = [];
  await rm(dir, { recursive: true, force: true });
});
afterAll(() => workers.close());

const ENGINES = ["onnx", "torch"] as const;
type Options = Omit<OnnxEngineOptions, "optimizer"> & {
  readonly optimizer?: { readonly type: "adamw"; readonly beta1?: number; readonly weightDecay?: number };
};
async function make(name: (typeof ENGINES)[number], options: Options): Promise<Engine> {
  const torch = { device: "cpu", ...(python === null ? {} : { python }) } as const;
  const engine = await (name === "onnx"
    ? createOnnxEngine(options)
    : createTorchEngine({ ...options, ...torch }, workers.start));
  engines.push(engine);
  return engine;
}

const samplesSchema = z.object({
  temperature: z.number(),
  samples: z.array(
    z.object({
      tokens: z.array(z.number()),
      lossMask: z.array(z.number()),
      dLogprobs: z.array(z.number()),
      dEntropy: z.array(z.number()),
    }),
  ),
});

/** The oracle's samples of a family; values are pulled too where there is a critic. */
async function batchOf(family: string, { values }: { readonly values: boolean }) {
  const raw = samplesSchema.parse(JSON.parse(await readFile(join(modelOf(family), "samples.json"), "utf8")));
  const samples: Sample[] = raw.samples.map(({ tokens, lossMask }) => ({
    tokens: Int32Array.from(tokens),
    lossMask: Uint8Array.from(lossMask),
  }));
  const cotangents: Cotangent[] = raw.samples.map(({ dLogprobs, dEntropy }) => ({
    dLogprobs: Float32Array.from(dLogprobs),
    dEntropy: Float32Array.from(dEntropy),
    ...(values ? { dValues: Float32Array.from(dEntropy, (pull, t) => 0.5 - pull + 0.1 * t) } : {}),
  }));
  return { temperature: raw.temperature, samples, cotangents };
}

/** Distance of two vectors by the expected one's norm; Infinity where the lengths differ. */
function relativeDistance(actual: ArrayLike<number> | undefined, expected: ArrayLike<number>): number {
  if (actual?.length !== expected.length) return Infinity;
  let difference = 0;
  let norm = 0;
  for (let i = 0; i < expected.length; i++) {
    difference += ((actual[i] ?? NaN) - (expected[i] ?? NaN)) ** 2;
    norm += (expected[i] ?? NaN) ** 2;
  }
  return difference === 0 ? 0 : Math.sqrt(difference / norm);
}

/** Tensors of two files that are further apart than that, by name; all where one file lacks some. */
async function apart(actual: string, expected: string, tolerance: number): Promise<string[]> {
  const [left, right] = await Promise.all([actual, expected].map(readSafetensors));
  expect([...(left?.keys() ?? [])].toSorted()).toEqual([...(right?.keys() ?? [])].toSorted());
  expect(right?.size).toBeGreaterThan(0);
  return [...(right ?? [])].flatMap(([name, { data }]) => {
    const distance = relativeDistance(left?.get(name)?.data, data);
    return distance < tolerance ? [] : [`${name}: ${distance}`];
  });
}

/** With β₁ = 0 the first moments of a checkpoint are the gradient of its last step. */
const REVEALING = { type: "adamw", beta1: 0 } as const;

const METHODS = {
  full: () => ({ type: "full" }) as const,
  lora: (family: string) =>
    ({ type: "lora", rank: 3, alpha: 6, adapterDir: join(modelOf(family), "adapter") }) as const,
};

describe.skipIf(python === null)("the engines agree", () => {
  test.each(
    ["llama", "qwen2", "qwen3"].flatMap((family) =>
      (["full", "lora"] as const).flatMap((method) =>
        [false, true].map((valueHead) => ({ family, method, valueHead })),
      ),
    ),
  )("on scores and gradients: $family, $method, critic: $valueHead", async ({ family, method, valueHead }) => {
    const { temperature, samples, cotangents } = await batchOf(family, { values: valueHead });
    const scores: number[][][][] = [];
    for (const name of ENGINES) {
      const engine = await make(name, {
        modelDir: modelOf(family),
        method: METHODS[method](family),
        optimizer: REVEALING,
        temperature,
        valueHead,
        // Several batches.
        maxTokensPerMicrobatch: 20,
      });
      const given = await engine.backward(samples, cotangents);
      scores.push(given.map((of) => [of.logprobs, of.entropy, of.values ?? []].map((values) => Array.from(values))));
      await engine.step({ learningRate: 0, maxGradNorm: Infinity });
      await engine.save(join(dir, name));
    }
    const distances = (scores[1] ?? []).flatMap((sample, i) =>
      sample.map((values, k) => relativeDistance(values, scores[0]?.[i]?.[k] ?? [])),
    );
    expect(distances).toHaveLength(15);
    expect(Math.max(...distances)).toBeLessThan(1e-4);
    const [torch, onnx] = ["torch", "onnx"].map((name) => join(dir, name, "first-moments.safetensors"));
    // The contract's bar; 1e-6 is usual.
    expect(await apart(torch ?? "", onnx ?? "", 1e-4)).toEqual([]);
    if (valueHead) return;
    const oracle = join(modelOf(family), `gradients-${method}.safetensors`);
    expect(await apart(torch ?? "", oracle, 1e-4)).toEqual([]);
  });

  test.each(["full", "lora"] as const)(
    "on five optimizer steps, with clipping, decay and a critic: %s",
    async (method) => {
      const { temperature, samples, cotangents } = await batchOf("qwen3", { values: true });
      const norms: number[][] = [];
      for (const name of ENGINES) {
        const engine = await make(name, {
          modelDir: modelOf("qwen3"),
          // A fresh adapter: from one seed both start with the same.
          method: method === "lora" ? { type: "lora", rank: 4, seed: 11 } : { type: "full" },
          optimizer: { type: "adamw", weightDecay: 0.1 },
          temperature,
          valueHead: true,
        });
        const taken: number[] = [];
        for (let step = 0; step < 5; step++) {
          await engine.backward(samples, cotangents);
          taken.push((await engine.step({ learningRate: 0.003 * (step + 1), maxGradNorm: 0.5 })).gradNorm);
        }
        norms.push(taken);
        await engine.save(join(dir, name));
      }
      expect(relativeDistance(norms[1], norms[0] ?? [])).toBeLessThan(1e-3);
      for (const file of ["weights", "first-moments", "second-moments"]) {
        const [torch, onnx] = ["torch", "onnx"].map((name) => join(dir, name, `${file}.safetensors`));
        expect(await apart(torch ?? "", onnx ?? "", 1e-3)).toEqual([]);
      }
    },
  );
});

const FROM_TO = [
  { from: "onnx", to: "torch" },
  { from: "torch", to: "onnx" },
] as const;

describe.skipIf(python === null)("what one has written, the other takes", () => {
  async function train(engine: Engine, steps: number): Promise<number[]> {
    const { samples, cotangents } = await batchOf("qwen3", { values: false });
    const norms: number[] = [];
    for (let i = 0; i < steps; i++) {
      await engine.backward(samples, cotangents);
      norms.push((await engine.step({ learningRate: 0.01, maxGradNorm: 1 })).gradNorm);
    }
    return norms;
  }
  const logprobs = async (engine: Engine): Promise<number[]> => {
    const { samples } = await batchOf("qwen3", { values: false });
    return (await engine.score(samples)).flatMap(({ logprobs }) => [...logprobs]);
  };
  const lora = { type: "lora", rank: 4, alpha: 8, seed: 3 } as const;

  test.each(FROM_TO)("an adapter of $from in $to and in peft", { timeout: 120_000 }, async ({ from, to }) => {
    const source = await make(from, { modelDir: modelOf("qwen3"), method: lora });
    const fresh = await logprobs(source);
    await train(source, 3);
    const expected = await logprobs(source);
    expect(relativeDistance(fresh, expected)).toBeGreaterThan(1e-2);
    const adapterDir = join(dir, "adapter");
    await source.exportAdapter(adapterDir);
    const other = await make(to, { modelDir: modelOf("qwen3"), method: { ...lora, adapterDir } });
    expect(relativeDistance(await logprobs(other), expected)).toBeLessThan(1e-5);

    const sample = (await batchOf("qwen3", { values: false })).samples[2];
    if (python === null || sample === undefined) throw new Error("nothing to compare");
    const text = runOracle(
      python,
      "open_exports.py",
      [modelOf("qwen3"), adapterDir],
      JSON.stringify({ tokens: [...sample.tokens] }),
    );
    const peft = z.object({ logprobs: z.array(z.number()), missing: z.array(z.string()) }).parse(JSON.parse(text));
    expect(peft.missing).toEqual([]);
    const [own] = await source.score([sample]);
    const masked = peft.logprobs.map((value, t) => value * (sample.lossMask[t + 1] ?? 0));
    expect(relativeDistance(own?.logprobs.slice(1), masked)).toBeLessThan(1e-5);
  });

  test.each(FROM_TO.flatMap((pair) => [lora, { type: "full" } as const].map((method) => ({ ...pair, method }))))(
    "a checkpoint of $from in $to: $method.type",
    async ({ from, to, method }) => {
      const source = await make(from, { modelDir: modelOf("qwen3"), method, valueHead: true });
      await train(source, 2);
      await source.save(join(dir, "at"));
      const expected = await train(source, 3);
      const other = await make(to, { modelDir: modelOf("qwen3"), method, valueHead: true });
      await other.load(join(dir, "at"));
      expect(relativeDistance(await train(other, 3), expected)).toBeLessThan(1e-3);
    },
  );

  test.each(FROM_TO.flatMap((pair) => [lora, { type: "full" } as const].map((method) => ({ ...pair, method }))))(
    "a model of $from in $to: $method.type",
    async ({ from, to, method }) => {
      const source = await make(from, { modelDir: modelOf("llama"), method });
      await train(source, 2);
      await source.exportWeights(join(dir, "model"));
      const other = await make(to, { modelDir: join(dir, "model"), method: { type: "full" } });
      expect(relativeDistance(await logprobs(other), await logprobs(source))).toBeLessThan(1e-5);
      const file = await openSafetensors(join(dir, "model", "model.safetensors"));
      expect(file.names.filter((name) => /lora|base_layer|value_head/.test(name))).toEqual([]);
      await file.close();
    },
  );
});
