import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import * as z from "zod";
import { sift, type SiftedGroup } from "../../../trainer/batch/sift.ts";
import type { Cotangent, Engine, Sample } from "../../../trainer/engine/contract.ts";
import { createOnnxEngine } from "../../../trainer/engine/onnx/engine.ts";
import { learn } from "../../../trainer/learn.ts";
import { lossSchema } from "../../../trainer/loss/loss.ts";
import { startTestEndpoint, type TestEndpoint } from "./endpoint.ts";
import { writeTinyModel } from "./tiny-model.ts";

/** What an endpoint in int8 samples is trained on by an engine in float32. */

const completionSchema = z.object({
  choices: z
    .array(z.object({ token_ids: z.array(z.int()), logprobs: z.object({ token_logprobs: z.array(z.number()) }) }))
    .length(1),
});
const PROMPT = [72, 101, 108, 108, 111];

let engine: Engine;
const endpoints = new Map<"fp32" | "int8", TestEndpoint>();

beforeAll(async () => {
  for (const precision of ["fp32", "int8"] as const) {
    endpoints.set(
      precision,
      await startTestEndpoint(async (dir) => void (await writeTinyModel(join(dir, "model"))), { precision }),
    );
  }
  engine = await createOnnxEngine({
    modelDir: join(endpoints.get("int8")?.dir ?? "", "model"),
    method: { type: "full" },
    threads: 1,
  });
});

afterAll(async () => {
  await engine.close();
  await Promise.all([...endpoints.values()].map((endpoint) => endpoint.close()));
});

test("what int8 changes is measured, and samples of the current weights are weighed by it", async () => {
  const groups = await sampleGroup("int8");
  const corrected = await learnFrom(groups, { isServedExactly: false });
  // Far over the 1e-12 of a server in float32, and far from a wrong answer.
  expect(corrected.report.mismatch_kl).toBeGreaterThan(1e-7);
  expect(corrected.report.mismatch_kl).toBeLessThan(1e-2);
  expect(Math.abs(corrected.report.importance_weight_max - 1)).toBeGreaterThan(1e-3);

  const blind = await learnFrom(groups, { isServedExactly: true });
  // Each token's derivative is that of the blind update times its own importance weight, cut off at 2.
  const ratios = corrected.dLogprobs.map((value, at) => value / (blind.dLogprobs[at] ?? NaN));
  const weights = corrected.policyLogprobs.map((logprob, at) =>
    Math.min(2, Math.exp(logprob - (blind.behaviourLogprobs[at] ?? NaN))),
  );
  expect(ratios).toHaveLength(8 * 12);
  for (const [at, ratio] of ratios.entries()) expect(ratio).toBeCloseTo(weights[at] ?? NaN, 5);
  expect(ratios.filter((ratio) => Math.abs(ratio - 1) > 1e-4).length).toBeGreaterThan(48);
});

test("in float32 there is next to nothing to weigh", async () => {
  const { report } = await learnFrom(await sampleGroup("fp32"), { isServedExactly: false });
  expect(report.mismatch_kl).toBeLessThan(1e-9);
  expect(report.importance_weight_max).toBeCloseTo(1, 3);
});

/** One group of eight answers of twelve tokens, every other one rewarded. */
async function sampleGroup(precision: "fp32" | "int8"): Promise<readonly SiftedGroup[]> {
  const endpoint = endpoints.get(precision);
  const records = await Promise.all(
    Array.from({ length: 8 }, async (_, i) => {
      const request = { model: "base", prompt: PROMPT, max_tokens: 12, ignore_eos: true, seed: i };
      const reply = await endpoint?.post("/v1/completions", { ...request, logprobs: 0, return_token_ids: true });
      const [choice] = completionSchema.parse(reply?.body).choices;
      return {
        id: `r${i}`,
        groupId: "group",
        taskId: null,
        reward: i % 2,
        status: "finished" as const,
        outcome: null,
        intermediate: [],
        calls: [
          {
            callId: `c${i}`,
            promptTokenIds: Int32Array.from(PROMPT),
            responseTokenIds: Int32Array.from(choice?.token_ids ?? []),
            behaviourLogprobs: Float32Array.from(choice?.logprobs.token_logprobs ?? []),
            policyVersion: 0,
            trainable: true,
            role: "main",
            finishReason: "length",
            toolCallIds: [],
            startedAt: i,
            latencyMs: 1,
          },
        ],
      };
    }),
  );
  return sift(records, {
    credit: { type: "identical" },
    advantage: { type: "group-mean" },
    lineage: { base: 0, made: [] },
    step: 0,
    maxStaleness: 0,
  }).groups;
}

/** An update that leaves the weights as they are, and what the engine was told and said at each action token. */
async function learnFrom(groups: readonly SiftedGroup[], { isServedExactly }: { readonly isServedExactly: boolean }) {
  const dLogprobs: number[] = [];
  const policyLogprobs: number[] = [];
  const report = await learn(groups, {
    engine: {
      score: (samples) => engine.score(samples),
      backward: async (samples: readonly Sample[], cotangents: readonly Cotangent[]) => {
        const scores = await engine.backward(samples, cotangents);
        for (const [row, { lossMask }] of samples.entries()) {
          for (const [t, bit] of lossMask.entries()) {
            if (bit !== 1) continue;
            dLogprobs.push(cotangents[row]?.dLogprobs[t] ?? NaN);
            policyLogprobs.push(scores[row]?.logprobs[t] ?? NaN);
          }
        }
        return scores;
      },
      step: (options) => engine.step(options),
    },
    loss: lossSchema.parse({ type: "ppo-clip" }),
    learningRate: 0,
    maxGradNorm: 1,
    updates: 1,
    isServedExactly,
    now: () => 0,
  });
  const behaviourLogprobs = groups.flatMap(({ rollouts }) =>
    rollouts.flatMap(({ trajectory }) =>
      trajectory.rows.flatMap((row) => [...row.behaviourLogprobs].filter((_, t) => row.lossMask[t] === 1)),
    ),
  );
  return { report, dLogprobs, policyLogprobs, behaviourLogprobs };
}
