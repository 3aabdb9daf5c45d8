import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import * as z from "zod";
import type { Cotangent, Sample } from "../../../../trainer/engine/contract.ts";
import { adamw } from "../../../../trainer/engine/onnx/adamw.ts";
import { emptyScores, planMicrobatches, scatterScores } from "../../../../trainer/engine/onnx/microbatch.ts";
import { tensorsOf } from "../../../../trainer/engine/onnx/parameters.ts";
import { Replica } from "../../../../trainer/engine/onnx/replica.ts";
import { prepare } from "../../../../trainer/engine/onnx/setup.ts";
import type { Method } from "../../../../trainer/engine/options.ts";
import { readSafetensors } from "../../../../trainer/model/safetensors.ts";
import { engineFixtures, findPython } from "../../../oracle/python.ts";

/** Float32 forward and backward passes in another order of sums; 1e-4 of a tensor's norm is the bar, 1e-6 is usual. */
const RELATIVE = 1e-4;

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
const scores = z.array(z.object({ logprobs: z.array(z.number()), entropy: z.array(z.number()) }));
const scoresSchema = z.object({ full: scores, lora: scores });
const adamwSchema = z.object({
  lr: z.number(),
  betas: z.tuple([z.number(), z.number()]),
  eps: z.number(),
  weight_decay: z.number(),
  start: z.array(z.number()),
  gradients: z.array(z.array(z.number())),
  end: z.array(z.number()),
});

let fixtures = "";
beforeAll(() => {
  const { dir, release } = engineFixtures(findPython());
  fixtures = dir;
  return release;
}, 180_000);

async function readJson<T>(path: string, schema: z.ZodType<T>): Promise<T> {
  return schema.parse(JSON.parse(await readFile(path, "utf8")));
}

/** Runs the samples of a family through one replica, `rows` padded tokens at a time, and reads its gradient buffer. */
async function backward(family: string, type: Method["type"], maxTokens: number) {
  const dir = join(fixtures, family);
  const { temperature, samples: raw } = await readJson(join(dir, "samples.json"), samplesSchema);
  const samples: Sample[] = raw.map(({ tokens, lossMask }) => ({
    tokens: Int32Array.from(tokens),
    lossMask: Uint8Array.from(lossMask),
  }));
  const cotangents: Cotangent[] = raw.map(({ dLogprobs, dEntropy }) => ({
    dLogprobs: Float32Array.from(dLogprobs),
    dEntropy: Float32Array.from(dEntropy),
  }));
  const { store, setups } = await prepare({
    modelDir: dir,
    temperature,
    method: type === "full" ? { type } : { type, rank: 3, alpha: 6, adapterDir: join(dir, "adapter") },
  });
  const [setup] = setups;
  if (setup === undefined) throw new Error("no replica was set up");
  const replica = new Replica(setup);
  const result = emptyScores(samples);
  const plan = planMicrobatches(samples, cotangents, { maxTokens, replicas: 1 });
  for (const planned of plan) scatterScores(result, planned, await replica.backward(planned.microbatch));
  return { batches: plan.length, result, gradients: tensorsOf(store, store.gradients[0] ?? new Float32Array()) };
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
  // A sample without targets scores exactly 0 in both.
  return difference === 0 ? 0 : Math.sqrt(difference / norm);
}

describe.each(["llama", "qwen2", "qwen3"])("a tiny random %s agrees with PyTorch", (family) => {
  test.each([
    { type: "full", batching: "in one padded batch", maxTokens: 1000, batches: 1 },
    { type: "lora", batching: "in one padded batch", maxTokens: 1000, batches: 1 },
    // Samples still share a batch where that is no longer than the longest alone.
    { type: "full", batching: "in small batches", maxTokens: 1, batches: expect.toSatisfy((count) => count >= 3) },
    { type: "lora", batching: "in small batches", maxTokens: 1, batches: expect.toSatisfy((count) => count >= 3) },
  ] as const)("$type: scores and gradients, $batching", async ({ type, maxTokens, batches }) => {
    const actual = await backward(family, type, maxTokens);
    expect(actual.batches).toEqual(batches);

    const expected = await readJson(join(fixtures, family, "scores.json"), scoresSchema);
    const scoreDistances = expected[type].flatMap(({ logprobs, entropy }, i) => [
      relativeDistance(actual.result[i]?.logprobs, logprobs),
      relativeDistance(actual.result[i]?.entropy, entropy),
    ]);
    expect(scoreDistances).toHaveLength(10);
    expect(Math.max(...scoreDistances)).toBeLessThan(RELATIVE);

    const gradients = await readSafetensors(join(fixtures, family, `gradients-${type}.safetensors`));
    expect([...actual.gradients.keys()].toSorted()).toEqual([...gradients.keys()].toSorted());
    const vacuous = [...gradients].filter(([, { data }]) => data.every((value) => value === 0));
    expect(vacuous).toEqual([]);
    const wrong = [...gradients]
      .map(([name, { data }]) => ({ name, distance: relativeDistance(actual.gradients.get(name)?.data, data) }))
      .filter(({ distance }) => !(distance < RELATIVE));
    expect(wrong).toEqual([]);
  });
});

test("AdamW takes the steps that PyTorch's takes", async () => {
  const { lr, betas, eps, weight_decay, start, gradients, end } = await readJson(
    join(fixtures, "adamw.json"),
    adamwSchema,
  );
  const weights = Float32Array.from(start);
  const firstMoments = new Float32Array(start.length);
  const secondMoments = new Float32Array(start.length);
  for (const [i, gradient] of gradients.entries()) {
    // Gradients are handed over doubled and scaled back by the clip factor.
    const doubled = Float32Array.from(gradient, (value) => 2 * value);
    adamw(
      { weights, gradients: doubled, firstMoments, secondMoments },
      {
        learningRate: lr,
        beta1: betas[0],
        beta2: betas[1],
        epsilon: eps,
        weightDecay: weight_decay,
        step: i + 1,
        gradientScale: 0.5,
      },
    );
  }
  expect(relativeDistance(weights, end)).toBeLessThan(1e-6);
});
