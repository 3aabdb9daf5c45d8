import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { z } from "zod";
import type { Sample } from "../../../trainer/engine/contract.ts";
import { emptyScores, planMicrobatches, scatterScores } from "../../../trainer/engine/onnx/microbatch.ts";
import { tensorsOf } from "../../../trainer/engine/onnx/parameters.ts";
import { Replica } from "../../../trainer/engine/onnx/replica.ts";
import { prepare } from "../../../trainer/engine/onnx/setup.ts";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import { readSafetensors } from "../../../trainer/model/safetensors.ts";

const fixtureFile = (path: string) => fileURLToPath(new URL(`../../oracle/fixtures/${path}`, import.meta.url));
const table = z.array(z.array(z.number()));
const { step } = z
  .object({
    step: z.object({
      config: lossSchema,
      tokens: table,
      lossMask: table,
      advantages: z.array(z.number()),
      proximalLogprobs: table,
      referenceLogprobs: table,
      loss: z.number(),
    }),
  })
  .parse(JSON.parse(readFileSync(fixtureFile("trl.json"), "utf8")));

const samples: Sample[] = step.tokens.map((tokens, at) => ({
  tokens: Int32Array.from(tokens),
  lossMask: Uint8Array.from(step.lossMask[at] ?? []),
}));

it("a GRPO step on the same model and batch has TRL's loss and TRL's gradient of every weight", async () => {
  const { store, setups } = await prepare({
    modelDir: fixtureFile("engine/llama"),
    temperature: 1,
    method: { type: "full" },
  });
  const [setup] = setups;
  if (setup === undefined) throw new Error("no replica was set up");
  const replica = new Replica(setup);
  const nothing = samples.map(({ lossMask }) => ({ dLogprobs: new Float32Array(lossMask.length) }));
  const scores = emptyScores(samples);
  for (const planned of planMicrobatches(samples, nothing, { maxTokens: 1000, replicas: 1 })) {
    scatterScores(scores, planned, await replica.score(planned.microbatch));
  }
  const { loss, dLogprobs, metrics } = computeLoss(
    samples.map(({ lossMask }, at) => ({
      rollout: at,
      lossMask,
      advantages: Array.from(lossMask, () => step.advantages[at] ?? NaN),
      behaviourLogprobs: step.proximalLogprobs[at] ?? [],
      proximalLogprobs: step.proximalLogprobs[at] ?? [],
      referenceLogprobs: step.referenceLogprobs[at] ?? [],
      policyLogprobs: scores[at]?.logprobs ?? [],
    })),
    step.config,
  );
  // Float32 through a model on both sides.
  expect(Math.abs(loss - step.loss)).toBeLessThan(1e-5);
  expect(metrics.clip_high_fraction + metrics.clip_low_fraction).toBeGreaterThan(0);

  const cotangents = dLogprobs.map((each) => ({ dLogprobs: each }));
  for (const planned of planMicrobatches(samples, cotangents, { maxTokens: 1000, replicas: 1 })) {
    await replica.backward(planned.microbatch);
  }
  const ours = tensorsOf(store, store.gradients[0] ?? new Float32Array());
  const theirs = await readSafetensors(fixtureFile("trl-step.safetensors"));
  expect([...ours.keys()].toSorted()).toEqual([...theirs.keys()].toSorted());
  const distances = [...theirs].map(([name, { data }]) => distance(ours.get(name)?.data, data));
  expect(distances.length).toBeGreaterThan(10);
  expect(Math.max(...distances)).toBeLessThan(1e-4);
});

/** Of two vectors, by the expected one's norm; Infinity where lengths differ or nothing is expected. */
function distance(actual: ArrayLike<number> | undefined, expected: ArrayLike<number>): number {
  if (actual?.length !== expected.length) return Infinity;
  let difference = 0;
  let norm = 0;
  for (let at = 0; at < expected.length; at += 1) {
    difference += ((actual[at] ?? NaN) - (expected[at] ?? NaN)) ** 2;
    norm += (expected[at] ?? NaN) ** 2;
  }
  return norm === 0 ? Infinity : Math.sqrt(difference / norm);
}
