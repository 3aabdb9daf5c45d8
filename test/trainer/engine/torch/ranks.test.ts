import { execFileSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Cotangent, Engine } from "../../../../trainer/engine/contract.ts";
import { createTorchEngine } from "../../../../trainer/engine/torch/engine.ts";
import { startWorker } from "../../../../trainer/engine/torch/worker.ts";
import { readSafetensors } from "../../../../trainer/model/safetensors.ts";
import { engineContract, sampleOf } from "../../../contract/engine.ts";
import { findPython } from "../../../oracle/python.ts";
import { RecycledWorkers } from "./recycled.ts";

/** Processes that share a model by FSDP2 give the numbers of one. */

const MODEL = fileURLToPath(new URL("../../../oracle/fixtures/engine/llama", import.meta.url));
/** Sums of float32 numbers in another order. */
const TOLERANCE = 1e-5;

const python = findPython();
const workers = new RecycledWorkers();
let dir = "";
let engines: Engine[] = [];
// Processes take seconds to import PyTorch, and the first tests would pay for it.
beforeAll(async () => {
  if (python === null) return;
  const opened = await Promise.all([make({}), make({ devices: 2 }), make({ devices: 2 })]);
  await Promise.all(opened.map((engine) => engine.close()));
}, 300_000);
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-ranks-"));
});
afterEach(async () => {
  await Promise.all(engines.map((engine) => engine.close()));
  engines = [];
  await rm(dir, { recursive: true, force: true });
});
afterAll(() => workers.close());

type Options = Partial<Parameters<typeof createTorchEngine>[0]>;
async function make(options: Options, start = workers.start): Promise<Engine> {
  const engine = await createTorchEngine(
    {
      modelDir: MODEL,
      device: "cpu",
      valueHead: true,
      maxTokensPerMicrobatch: 24,
      ...(python === null ? {} : { python }),
      ...options,
    },
    start,
  );
  engines.push(engine);
  return engine;
}

// Seven samples in batches of 24 tokens: the ranks get unlike shares, of unlike numbers of batches.
const samples = [19, 12, 12, 9, 5, 4, 3].map((length, i) => sampleOf(length, [1, 2, length - 1 - (i % 2)]));
const cotangents: Cotangent[] = samples.map(({ tokens }, i) => ({
  dLogprobs: Float32Array.from(tokens, (_, t) => -1 + 0.2 * ((t + i) % 5)),
  dEntropy: Float32Array.from(tokens, (_, t) => 0.1 * ((t + 2 * i) % 3)),
  dValues: Float32Array.from(tokens, (_, t) => 0.3 - 0.1 * (t % 4)),
}));

async function train(engine: Engine, steps: number): Promise<number[]> {
  const norms: number[] = [];
  for (let i = 0; i < steps; i++) {
    await engine.backward(samples, cotangents);
    // A single batch too: the second rank then has nothing of its own.
    await engine.backward(samples.slice(0, 1), cotangents.slice(0, 1));
    norms.push((await engine.step({ learningRate: 0.01, maxGradNorm: 0.5 })).gradNorm);
  }
  return norms;
}

function relativeDistance(actual: ArrayLike<number> | undefined, expected: ArrayLike<number> | undefined): number {
  if (actual === undefined || expected === undefined || actual.length !== expected.length) return Infinity;
  const values = Array.from(expected);
  const difference = Math.hypot(...values.map((value, i) => value - (actual[i] ?? NaN)));
  return difference === 0 ? 0 : difference / Math.hypot(...values);
}

async function expectSameFiles(actual: string, expected: string): Promise<void> {
  const [left, right] = await Promise.all([actual, expected].map(readSafetensors));
  expect([...(left?.keys() ?? [])].toSorted()).toEqual([...(right?.keys() ?? [])].toSorted());
  expect(right?.size).toBeGreaterThan(10);
  const wrong = [...(right ?? [])].filter(
    ([name, { data }]) => !(relativeDistance(left?.get(name)?.data, data) < TOLERANCE),
  );
  expect(wrong.map(([name]) => name)).toEqual([]);
}

const METHODS = [{ type: "full" }, { type: "lora", rank: 4, seed: 2 }] as const;

describe.skipIf(python === null)("two processes", () => {
  test.each(METHODS)("score, pull and step as one does: $type", async (method) => {
    const [one, two] = [await make({ method }), await make({ method, devices: 2, threads: 2 })];
    const scores = await Promise.all([one, two].map((engine) => engine.score(samples)));
    for (const key of ["logprobs", "entropy", "values"] as const) {
      for (const [i, expected] of (scores[0] ?? []).entries()) {
        expect(relativeDistance(scores[1]?.[i]?.[key], expected[key])).toBeLessThan(TOLERANCE);
      }
    }
    const norms = await Promise.all([one, two].map((engine) => train(engine, 3)));
    expect(relativeDistance(norms[1], norms[0])).toBeLessThan(TOLERANCE);
    await one.save(join(dir, "one"));
    await two.save(join(dir, "two"));
    for (const file of ["weights", "first-moments", "second-moments"]) {
      await expectSameFiles(join(dir, "two", `${file}.safetensors`), join(dir, "one", `${file}.safetensors`));
    }
    await one.exportWeights(join(dir, "model-one"));
    await two.exportWeights(join(dir, "model-two"));
    await expectSameFiles(join(dir, "model-two", "model.safetensors"), join(dir, "model-one", "model.safetensors"));
    if (method.type === "full") return;
    await one.exportAdapter(join(dir, "adapter-one"));
    await two.exportAdapter(join(dir, "adapter-two"));
    const file = "adapter_model.safetensors";
    await expectSameFiles(join(dir, "adapter-two", file), join(dir, "adapter-one", file));
  });

  test.each(METHODS)("go on from a checkpoint of another number of processes: $type", async (method) => {
    const two = await make({ method, devices: 2 });
    await train(two, 2);
    await two.save(join(dir, "two"));
    const expected = await train(two, 2);
    const one = await make({ method });
    await one.load(join(dir, "two"));
    expect(relativeDistance(await train(one, 2), expected)).toBeLessThan(TOLERANCE);
    await one.load(join(dir, "two"));
    await one.save(join(dir, "one"));
    const again = await make({ method, devices: 2 });
    await again.load(join(dir, "one"));
    expect(relativeDistance(await train(again, 2), expected)).toBeLessThan(TOLERANCE);
  });

  test("with gradient checkpointing, the same", async () => {
    const [one, two] = [
      await make({ method: { type: "full" } }),
      await make({ method: { type: "full" }, devices: 2, gradientCheckpointing: true }),
    ];
    expect(relativeDistance(await train(two, 2), await train(one, 2))).toBeLessThan(TOLERANCE);
  });

  test(
    "end together when one is killed, with an error that says so; a new engine goes on from the checkpoint",
    { timeout: 180_000 },
    async () => {
      const method = { type: "full" } as const;
      const others = new Set(workerProcesses());
      const doomed = await make({ method, devices: 2 }, startWorker);
      await train(doomed, 1);
      await doomed.save(join(dir, "at"));
      const ranks = workerProcesses().filter((pid) => !others.has(pid));
      expect(ranks).toHaveLength(2);
      const expected = await train(doomed, 2);
      const [, second] = ranks;
      const failing = train(doomed, 1000);
      process.kill(second ?? NaN, "SIGKILL");
      await expect(failing).rejects.toMatchObject({
        code: "ERR_PLATFORM",
        message: expect.stringMatching(
          /^Rank 1 of 2 of the torch worker was killed \(SIGKILL\).*Start the trainer again/,
        ),
      });
      await expect(doomed.score(samples)).rejects.toThrow(/was killed/);
      await doomed.close();
      expect(workerProcesses().filter((pid) => !others.has(pid))).toEqual([]);

      const again = await make({ method, devices: 2 });
      await again.load(join(dir, "at"));
      expect(relativeDistance(await train(again, 2), expected)).toBeLessThan(TOLERANCE);
    },
  );
});

describe.skipIf(python === null)("the contract holds for two processes", () => {
  engineContract("torch, two ranks,", {
    make: (type) => make({ method: type === "lora" ? { type, rank: 4 } : { type }, devices: 2 }),
    batchTolerance: 2e-6,
  });
});

/** Process ids of this process's workers, oldest first. */
function workerProcesses(): number[] {
  const lines = execFileSync("ps", ["-o", "pid=,args=", "--ppid", String(process.pid)], { encoding: "utf8" }).split(
    "\n",
  );
  return lines
    .filter((line) => line.includes("-m worker"))
    .map((line) => Number(line.trim().split(/\s+/)[0]))
    .toSorted((a, b) => a - b);
}
