/** A batch through credit, advantage, loss and engine against the same batch through TRL's GRPOTrainer. */

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { advantageSchema } from "../../trainer/advantage/advantage.ts";
import { sift } from "../../trainer/batch/sift.ts";
import type { Engine, StepReport } from "../../trainer/engine/contract.ts";
import { createOnnxEngine } from "../../trainer/engine/onnx/engine.ts";
import type { OnnxEngineOptions } from "../../trainer/engine/options.ts";
import { learn } from "../../trainer/learn.ts";
import { lossSchema } from "../../trainer/loss/loss.ts";
import { readSafetensors, type Tensor } from "../../trainer/model/safetensors.ts";
import type { CallRecord, RolloutRecord } from "../../trainer/records.ts";
import { findPython, hasModule, runOracle } from "../oracle/python.ts";

/** Float32 through a model on both sides, and at the second step through an optimizer too; 1e-6 is usual. */
const RELATIVE = 1e-4;

const fixture = (path: string) => fileURLToPath(new URL(`../oracle/fixtures/${path}`, import.meta.url));
const tokens = z.array(z.int()).transform((ids) => Int32Array.from(ids));
const made = z
  .object({
    optimizer: z.object({
      maxGradNorm: z.number(),
      beta1: z.literal(0),
      beta2: z.number(),
      epsilon: z.number(),
    }),
    temperature: z.number(),
    advantage: advantageSchema,
    rollouts: z.array(
      z.object({
        group: z.int(),
        reward: z.number(),
        calls: z.array(z.object({ prompt: tokens, response: tokens })),
      }),
    ),
    cases: z.array(
      z.object({
        name: z.string(),
        method: z.enum(["full", "lora"]),
        trl: z.looseObject({ learning_rate: z.number() }),
        loss: lossSchema,
        steps: z.array(z.object({ loss: z.number(), grad_norm: z.number() })).length(2),
      }),
    ),
  })
  .parse(JSON.parse(await readFile(fixture("trl-step.json"), "utf8")));

const records: RolloutRecord[] = made.rollouts.map(({ group, reward, calls }, at) => ({
  id: `r${at}`,
  groupId: `g${group}`,
  taskId: null,
  reward,
  status: "finished",
  outcome: null,
  intermediate: [],
  calls: calls.map(({ prompt, response }, turn): CallRecord => ({
    callId: `r${at}c${turn}`,
    promptTokenIds: prompt,
    responseTokenIds: response,
    // TRL scores the batch itself before the first step, and so do we when a batch is used for several.
    behaviourLogprobs: new Float32Array(response.length),
    policyVersion: 0,
    trainable: true,
    role: "main",
    toolCallIds: [],
    finishReason: "stop",
    startedAt: 0,
    latencyMs: 1,
  })),
}));

let dir = "";
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-trl-"));
});
afterAll(async () => {
  await rm(dir, { recursive: true, force: true });
});

describe("two GRPO steps on the same weights and batch as TRL", () => {
  it.each(made.cases)(
    "$name: the losses, gradient norms and every gradient",
    async ({ name, method, trl, loss, steps }) => {
      const { groups } = sift(records, {
        credit: { type: "identical" },
        advantage: made.advantage,
        lineage: { base: 0, made: [] },
        step: 0,
        maxStaleness: 0,
      });
      expect(groups.flatMap(({ rollouts }) => rollouts.map(({ trajectory }) => trajectory.rows.length))).toEqual(
        made.rollouts.map(() => 1),
      );
      const engine = await openEngine(method);
      const reference = await openEngine(method);
      const { maxGradNorm } = made.optimizer;
      const noted: (StepReport & { readonly gradients: ReadonlyMap<string, Tensor> })[] = [];
      const step = async (options: Parameters<Engine["step"]>[0]): Promise<StepReport> => {
        const report = await engine.step(options);
        noted.push({ ...report, gradients: await clippedGradients(engine, join(dir, `${name}-${noted.length}`)) });
        return report;
      };
      try {
        const report = await learn(groups, {
          engine: { score: (s) => engine.score(s), backward: (s, c) => engine.backward(s, c), step },
          reference,
          loss,
          advantage: made.advantage,
          learningRate: trl.learning_rate,
          maxGradNorm,
          updates: 2,
          now: () => 0,
        });
        const wanted = steps.reduce((sum, each) => sum + each.loss, 0) / steps.length;
        expect(Math.abs(report.loss / wanted - 1)).toBeLessThan(RELATIVE);
        // The second step is away from its start, so that ratios and bounds matter.
        expect(report.clip_low_fraction + report.clip_high_fraction).toBeGreaterThan(0.05);
      } finally {
        await engine.close();
        await reference.close();
      }
      expect(noted).toHaveLength(2);
      for (const [at, { gradNorm, gradients }] of noted.entries()) {
        expect(Math.abs(gradNorm / (steps[at]?.grad_norm ?? NaN) - 1)).toBeLessThan(RELATIVE);
        const theirs = await readSafetensors(fixture(`trl-step-${name}-${at}.safetensors`));
        expect([...gradients.keys()].toSorted()).toEqual(
          [...theirs.keys()].map((key) => ourName(key, method)).toSorted(),
        );
        const wrong = [...theirs]
          .map(([key, { data }]) => ({ key, far: distance(gradients.get(ourName(key, method))?.data, data) }))
          .filter(({ far }) => !(far < RELATIVE));
        expect(wrong).toEqual([]);
      }
    },
  );

  const python = findPython();
  it.skipIf(python === null || !hasModule(python, "trl"))(
    "the committed fixture is what TRL computes now",
    () => {
      expect(runOracle(python ?? "", "trl_step.py", ["--check"])).toContain("trl-step.json agrees");
    },
    180_000,
  );
});

function openEngine(method: "full" | "lora"): Promise<Engine> {
  const { beta1, beta2, epsilon } = made.optimizer;
  const modelDir = fixture("engine/llama");
  const options: OnnxEngineOptions = {
    modelDir,
    temperature: made.temperature,
    optimizer: { type: "adamw", beta1, beta2, epsilon },
    method:
      method === "full" ? { type: method } : { type: method, rank: 3, alpha: 6, adapterDir: `${modelDir}/adapter` },
    threads: 2,
  };
  return createOnnxEngine(options);
}

/** What the optimizer was given last: without β1 the first moment is the gradient, scaled down to the norm's limit. */
async function clippedGradients(engine: Engine, folder: string): Promise<ReadonlyMap<string, Tensor>> {
  await engine.save(folder);
  return readSafetensors(join(folder, "first-moments.safetensors"));
}

/** TRL holds the adapter inside the model, PEFT's files name the model around it. */
function ourName(theirs: string, method: "full" | "lora"): string {
  return method === "full" ? theirs : `base_model.model.${theirs}`;
}

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
