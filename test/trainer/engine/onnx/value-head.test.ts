import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import * as z from "zod";
import type { Cotangent, Engine, Sample } from "../../../../trainer/engine/contract.ts";
import { createOnnxEngine } from "../../../../trainer/engine/onnx/engine.ts";
import { emptyScores, planMicrobatches, scatterScores } from "../../../../trainer/engine/onnx/microbatch.ts";
import { tensorsOf } from "../../../../trainer/engine/onnx/parameters.ts";
import { Replica } from "../../../../trainer/engine/onnx/replica.ts";
import { prepare } from "../../../../trainer/engine/onnx/setup.ts";
import type { OnnxEngineOptions } from "../../../../trainer/engine/options.ts";
import { VALUE_BIAS, VALUE_WEIGHT } from "../../../../trainer/engine/value-head.ts";
import { explainedVariance, valueLoss, type ValueRow } from "../../../../trainer/loss/value.ts";
import { readSafetensors } from "../../../../trainer/model/safetensors.ts";
import { sampleOf } from "../../../contract/engine.ts";
import { VALUES } from "../../../oracle/value-fixtures.ts";

const fixture = (name: string): string => fileURLToPath(new URL(`../../../oracle/fixtures/${name}`, import.meta.url));
const modelOf = (family: string): string => fixture(`engine/${family}`);

let dir = "";
let engines: Engine[] = [];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-value-"));
});
afterEach(async () => {
  await Promise.all(engines.map((engine) => engine.close()));
  engines = [];
  await rm(dir, { recursive: true, force: true });
});
async function make(options: Partial<OnnxEngineOptions> = {}): Promise<Engine> {
  const engine = await createOnnxEngine({ modelDir: modelOf("qwen3"), method: { type: "lora", rank: 4 }, ...options });
  engines.push(engine);
  return engine;
}

/** Whatever a part has in files beside the critic's own: samples with cotangents of all three scores. */
async function samplesOf({ family, samples }: (typeof VALUES.models)[number]) {
  const numbers = z.array(z.number());
  const schema = z.object({
    temperature: z.number(),
    samples: z.array(z.object({ tokens: numbers, lossMask: numbers, dLogprobs: numbers, dEntropy: numbers })),
  });
  const raw = schema.parse(JSON.parse(await readFile(join(modelOf(family), "samples.json"), "utf8")));
  return {
    temperature: raw.temperature,
    samples: raw.samples.map(({ tokens, lossMask }) => ({
      tokens: Int32Array.from(tokens),
      lossMask: Uint8Array.from(lossMask),
    })),
    cotangents: raw.samples.map(({ dLogprobs, dEntropy }, at) => ({
      dLogprobs: Float32Array.from(dLogprobs),
      dEntropy: Float32Array.from(dEntropy),
      dValues: Float32Array.from(samples[at]?.dValues ?? []),
    })),
  };
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

describe("a critic on a tiny random model agrees with PyTorch", () => {
  test.each(VALUES.models.map((model) => [`${model.family}, ${model.method}`, model] as const))(
    "%s",
    async (_, model) => {
      const { family, method } = model;
      const { temperature, samples, cotangents } = await samplesOf(model);
      const tensors = await readSafetensors(fixture("value-head.safetensors"));
      const { store, setups } = await prepare({
        modelDir: modelOf(family),
        temperature,
        valueHead: true,
        method:
          method === "full"
            ? { type: "full" }
            : { type: "lora", rank: 3, alpha: 6, adapterDir: join(modelOf(family), "adapter") },
      });
      const weights = tensorsOf(store, store.weights);
      for (const name of [VALUE_WEIGHT, VALUE_BIAS]) {
        weights.get(name)?.data.set(tensors.get(`${family}/${method}/weights/${name}`)?.data ?? []);
      }
      const [setup] = setups;
      if (setup === undefined) throw new Error("no replica was set up");
      const replica = new Replica(setup);
      const scores = emptyScores(samples, { valueHead: true });
      const plan = planMicrobatches(samples, cotangents, { maxTokens: 20, replicas: 1 });
      expect(plan.length).toBeGreaterThan(1);
      for (const planned of plan) scatterScores(scores, planned, await replica.backward(planned.microbatch));

      // Float32 against float64, in another order of sums.
      const distances = model.samples.map(({ values }, i) => relativeDistance(scores[i]?.values, values));
      expect(Math.max(...distances)).toBeLessThan(1e-5);
      const gradients = tensorsOf(store, store.gradients[0] ?? new Float32Array());
      const prefix = `${family}/${method}/gradients/`;
      const expected = [...tensors].flatMap(([name, { data }]) =>
        name.startsWith(prefix) ? [[name.slice(prefix.length), data] as const] : [],
      );
      expect([...gradients.keys()].toSorted()).toEqual(expected.map(([name]) => name).toSorted());
      const wrong = expected
        .map(([name, data]) => ({ name, distance: relativeDistance(gradients.get(name)?.data, data) }))
        .filter(({ distance }) => !(distance < 1e-5));
      expect(wrong).toEqual([]);
    },
  );
});

const samples = [sampleOf(12, [2, 3, 7, 11]), sampleOf(7, [4, 6])];
const none = ({ tokens }: Sample): Float32Array => new Float32Array(tokens.length);
const ups = (pull: number): Cotangent[] =>
  samples.map((sample) => ({ dLogprobs: none(sample), dValues: none(sample).fill(pull) }));
const valuesOf = async (engine: Engine): Promise<number[]> =>
  (await engine.score(samples)).flatMap(({ values }, i) =>
    [...(values ?? [])].filter((_, t) => samples[i]?.lossMask[t] === 1),
  );

describe("an engine with a value head", () => {
  test("expects nothing at first, whatever is masked is 0, and values follow their pull", async () => {
    const engine = await make({ valueHead: true });
    expect(engine.info.valueHead).toBe(true);
    expect(await valuesOf(engine)).toEqual([0, 0, 0, 0, 0, 0]);
    for (let i = 0; i < 3; i++) {
      await engine.backward(samples, ups(-1));
      await engine.step({ learningRate: 0.01, maxGradNorm: 1 });
    }
    const values = await valuesOf(engine);
    expect(values).toHaveLength(6);
    expect(Math.min(...values)).toBeGreaterThan(0.01);
    const [first] = await engine.score(samples);
    expect([...(first?.values ?? [])].flatMap((value, t) => (value === 0 ? [] : [t]))).toEqual([2, 3, 7, 11]);
  });

  test("leaves the policy's scores and gradient as they are without one, to the bit, until values are pulled", async () => {
    const pulls = samples.map((sample) => ({ dLogprobs: none(sample).fill(-1) }));
    const [with_, without] = [await make({ valueHead: true }), await make()];
    expect(without.info.valueHead).toBe(false);
    const norms: number[] = [];
    for (const engine of [with_, without]) {
      await engine.backward(samples, pulls);
      norms.push((await engine.step({ learningRate: 0.01, maxGradNorm: 1 })).gradNorm);
    }
    expect(norms[0]).toBe(norms[1]);
    const [a, b] = [await with_.score(samples), await without.score(samples)];
    expect(a.map(({ logprobs, entropy }) => ({ logprobs, entropy }))).toEqual(b);
  });

  test("its gradient is the slope that finite differences find along it, through the trunk too", async () => {
    const { store, setups } = await prepare({ modelDir: modelOf("qwen3"), method: { type: "full" }, valueHead: true });
    const [setup] = setups;
    if (setup === undefined) throw new Error("no replica was set up");
    const head = tensorsOf(store, store.weights).get(VALUE_WEIGHT)?.data;
    head?.forEach((_, i) => (head[i] = 0.1 * (i % 5) - 0.2));
    const replica = new Replica(setup);
    const cotangents = samples.map(({ tokens }) => ({
      dLogprobs: Float32Array.from(tokens, (_, t) => 0.1 * (t % 3)),
      dValues: Float32Array.from(tokens, (_, t) => 1 - 0.5 * (t % 4)),
    }));
    const plan = planMicrobatches(samples, cotangents, { maxTokens: 1000, replicas: 1 });
    const lossAt = async (): Promise<number> => {
      let loss = 0;
      for (const { microbatch } of plan) {
        const { logprobs, values } = await replica.score(microbatch);
        for (const [m, pull] of microbatch.dValues.entries()) {
          loss += pull * (values?.[m] ?? NaN) + (microbatch.dLogprobs[m] ?? NaN) * (logprobs[m] ?? NaN);
        }
      }
      return loss;
    };
    for (const { microbatch } of plan) await replica.backward(microbatch);
    const gradient = Float64Array.from(store.gradients[0] ?? []);
    const norm = Math.hypot(...gradient);
    const start = Float32Array.from(store.weights);
    const moved = async (by: number): Promise<number> => {
      store.weights.forEach((_, i) => (store.weights[i] = (start[i] ?? 0) + (by * (gradient[i] ?? 0)) / norm));
      return lossAt();
    };
    const h = 1e-3;
    const slope = ((await moved(h)) - (await moved(-h))) / (2 * h);
    // Float32 losses near 1, 1e-7 apart from what they should be, over a difference of 2e-3.
    expect(slope / norm).toBeCloseTo(1, 3);
  });

  test("learns from valueLoss what is to be expected where", async () => {
    const engine = await make({ valueHead: true });
    const returns = samples.map(({ tokens }) => Float32Array.from(tokens, (_, t) => Math.cos(t)));
    const rows = async (): Promise<ValueRow[]> =>
      (await engine.score(samples)).map(({ values = new Float32Array() }, i) => ({
        lossMask: samples[i]?.lossMask ?? new Uint8Array(),
        values,
        proximalValues: values,
        returns: returns[i] ?? new Float32Array(),
      }));
    const losses: number[] = [];
    for (let step = 0; step < 60; step++) {
      const { value_loss, dValues } = valueLoss(await rows(), { coefficient: 1, clip: 0.2 });
      losses.push(value_loss);
      await engine.backward(
        samples,
        samples.map((sample, i) => ({ dLogprobs: none(sample), dValues: dValues[i] ?? none(sample) })),
      );
      await engine.step({ learningRate: 0.02, maxGradNorm: 1 });
    }
    expect(losses.at(-1)).toBeLessThan(0.05 * (losses[0] ?? 0));
    expect(explainedVariance(await rows())).toBeGreaterThan(0.9);
  });

  test("goes on bit for bit from a checkpoint, the critic too", async () => {
    const advance = async (engine: Engine): Promise<number> => {
      await engine.backward(samples, ups(-0.5));
      return (await engine.step({ learningRate: 0.01, maxGradNorm: 0.5 })).gradNorm;
    };
    const through = await make({ valueHead: true });
    await advance(through);
    await through.save(join(dir, "at"));
    const norms = [await advance(through), await advance(through)];
    const resumed = await make({ valueHead: true });
    await resumed.load(join(dir, "at"));
    expect([await advance(resumed), await advance(resumed)]).toEqual(norms);
    expect(await resumed.score(samples)).toEqual(await through.score(samples));
  });

  test("its checkpoint is refused by an engine without one, and the other way round", async () => {
    const [with_, without] = [await make({ valueHead: true }), await make()];
    await with_.save(join(dir, "with"));
    await without.save(join(dir, "without"));
    await expect(without.load(join(dir, "with"))).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
    await expect(with_.load(join(dir, "without"))).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  });

  test.each([
    ["adapter", { type: "lora", rank: 4 }],
    ["model", { type: "full" }],
  ] as const)("exports the policy alone: %s", async (what, method) => {
    const names: string[][] = [];
    for (const valueHead of [true, false]) {
      const engine = await make({ method, valueHead });
      const out = join(dir, String(valueHead));
      await (what === "adapter" ? engine.exportAdapter(out) : engine.exportWeights(out));
      const file = what === "adapter" ? "adapter_model.safetensors" : "model.safetensors";
      names.push([...(await readSafetensors(join(out, file))).keys()]);
    }
    expect(names[0]).toEqual(names[1]);
    expect(names[0]?.some((name) => name.startsWith("value_head"))).toBe(false);
  });

  test("is needed for values to be pulled, and their number is checked", async () => {
    const without = await make();
    await expect(without.backward(samples, ups(-1))).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("valueHead"),
    });
    const engine = await make({ valueHead: true });
    const short = samples.map((sample) => ({ dLogprobs: none(sample), dValues: new Float32Array(3) }));
    await expect(engine.backward(samples, short)).rejects.toMatchObject({
      code: "ERR_SHAPE",
      message: expect.stringContaining("dValues"),
    });
  });
});
