import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { Cotangent, Engine, Sample } from "../trainer/engine/contract.ts";
import { createOnnxEngine } from "../trainer/engine/onnx/engine.ts";
import { Random } from "../trainer/engine/random.ts";
import type { BenchResult } from "./result.ts";
import { CASE_FLAGS, chosenCases, chosenRounds } from "./train-parts/flags.ts";
import { FIVE_MILLION, HUNDRED_THIRTY_MILLION, type Shape, writeRandomModel } from "./train-parts/model.ts";
import { INSTALL_TORCH, startTorch, type TorchPeer } from "./train-parts/torch.ts";

/**
 * Forward and backward of the onnx engine against PyTorch, eager and compiled, on the same weights and tokens: each round
 * runs every arm once, in turns, so that whatever else the machine does falls on all of them.
 */

export const name = "train";
export const about =
  "forward and backward against PyTorch, eager and compiled; cases full, lora, small, 130m-full, 130m-lora";
export const options = CASE_FLAGS;

const THREADS = 2;
const ROUNDS = 9;
/** PyTorch's threads spin on for a moment after their last work, and would slow down whoever comes next. */
const PAUSE_MS = 300;

/** The size of the built-in model, with a batch as RL makes them. */
const ONE_MILLION: Shape = {
  hidden_size: 144,
  intermediate_size: 384,
  num_hidden_layers: 4,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  vocab_size: 600,
};

/** Ways of PyTorch beside eager: bf16 where the processor has units for it, and torch.compile. */
type Other = "compile" | "autocast";

interface Case {
  /** For `--case`. */
  readonly key: string;
  readonly title: string;
  readonly shape: Shape;
  readonly method: "full" | "lora";
  readonly rows: number;
  readonly time: number;
  /** Part of the tokens that are targets. */
  readonly targets: number;
  /** What PyTorch runs beside eager. */
  readonly others: readonly Other[];
}

const CASES: readonly Case[] = [
  {
    key: "full",
    title: "5 M, full weights, 16×256",
    shape: FIVE_MILLION,
    method: "full",
    rows: 16,
    time: 256,
    targets: 1,
    others: ["compile", "autocast"],
  },
  {
    key: "lora",
    title: "5 M, LoRA rank 16, 16×256",
    shape: FIVE_MILLION,
    method: "lora",
    rows: 16,
    time: 256,
    targets: 1,
    others: ["compile"],
  },
  {
    key: "small",
    title: "1 M, full weights, 32×190, 20% targets",
    shape: ONE_MILLION,
    method: "full",
    rows: 32,
    time: 190,
    targets: 0.2,
    others: [],
  },
  {
    key: "130m-full",
    title: "130 M, full weights, 4×256",
    shape: HUNDRED_THIRTY_MILLION,
    method: "full",
    rows: 4,
    time: 256,
    targets: 1,
    others: ["compile", "autocast"],
  },
  {
    key: "130m-lora",
    title: "130 M, LoRA rank 16, 4×256",
    shape: HUNDRED_THIRTY_MILLION,
    method: "lora",
    rows: 4,
    time: 256,
    targets: 1,
    others: ["compile", "autocast"],
  },
];

/** Runs the benchmark; `ratio` is the first case's, float32 on both sides. */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<BenchResult> {
  const cases = chosenCases(CASES, flags);
  const rounds = chosenRounds(flags, ROUNDS);
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-train-"));
  const torch = startTorch(THREADS);
  try {
    const table: Record<string, unknown>[] = [];
    for (const each of cases) table.push(await measure(each, { dir: join(dir, each.key), torch, rounds }));
    const headline = table[0]?.["ratio"];
    return {
      name,
      ratio: typeof headline === "number" ? headline : null,
      table,
      notes: [
        `Tokens/s of forward + backward, ${THREADS} threads of ${availableParallelism()} processors, medians of ${rounds} rounds in turns, ratios too (each of one round); ours in float32.`,
        torch === null
          ? `PyTorch is not installed: ${INSTALL_TORCH} (or set PYTHON to an interpreter that has it).`
          : `PyTorch ${torch.version}, transformers, SDPA attention, float32; bf16 is its autocast, eager, measured only on processors with bf16 units; ONNX Runtime's CPU kernels have none of it.`,
      ],
    };
  } finally {
    torch?.close();
    await rm(dir, { recursive: true });
  }
}

interface World {
  readonly dir: string;
  readonly torch: TorchPeer | null;
  readonly rounds: number;
}

async function measure(case_: Case, { dir, torch, rounds }: World): Promise<Record<string, unknown>> {
  const parameters = await writeRandomModel(dir, case_.shape);
  const engine = await createOnnxEngine({ modelDir: dir, method: { type: case_.method }, threads: THREADS });
  try {
    const { samples, cotangents } = batchOf(case_);
    const request = {
      model: dir,
      method: case_.method,
      tokens: samples.map(({ tokens }) => [...tokens]),
      mask: samples.map(({ lossMask }) => [...lossMask]),
    };
    const times = new Map<"ours" | "eager" | Other, number[]>();
    const note = (arm: "ours" | "eager" | Other, ms: number, round: number): void => {
      if (round > 0) times.set(arm, [...(times.get(arm) ?? []), ms]);
    };
    // Processors without bf16 units emulate it, tens of times slower.
    const hasBf16 = torch !== null && (await torch.bf16Speedup()) > 1;
    const others = case_.others.filter((how) => how !== "autocast" || hasBf16);
    // The first round opens sessions, loads models and compiles.
    for (let round = 0; round <= rounds; round++) {
      const ours = await oursOnce(engine, samples, cotangents);
      note("ours", ours.ms, round);
      await pause(PAUSE_MS);
      if (torch === null) continue;
      const eager = await torch.pass({ ...request, how: "eager" });
      note("eager", eager.ms, round);
      // Random adapters differ, but both start at zero: the loss is the base model's for both methods.
      if (Math.abs(eager.loss / ours.loss - 1) > 1e-4) {
        throw new Error(`The arms do not compute the same: loss ${ours.loss} here, ${eager.loss} in PyTorch.`);
      }
      await pause(PAUSE_MS);
      for (const how of others) {
        note(how, (await torch.pass({ ...request, how })).ms, round);
        await pause(PAUSE_MS);
      }
    }
    const timesOf = (arm: "ours" | "eager" | Other): readonly number[] => times.get(arm) ?? [];
    const tokens = case_.rows * case_.time;
    const rate = (ms: readonly number[]): number | null => (ms.length === 0 ? null : (tokens / median(ms)) * 1000);
    return {
      case: case_.title,
      parameters,
      "ours tok/s": rate(timesOf("ours")),
      "torch eager tok/s": rate(timesOf("eager")),
      ratio: pairedRatio(timesOf("eager"), timesOf("ours")),
      "torch compile tok/s": rate(timesOf("compile")),
      "ratio to compile": pairedRatio(timesOf("compile"), timesOf("ours")),
      "torch bf16 tok/s": rate(timesOf("autocast")),
      "ratio to bf16": pairedRatio(timesOf("autocast"), timesOf("ours")),
    };
  } finally {
    await engine.close();
  }
}

async function oursOnce(
  engine: Engine,
  samples: readonly Sample[],
  cotangents: readonly Cotangent[],
): Promise<{ readonly ms: number; readonly loss: number }> {
  const started = performance.now();
  const scores = await engine.backward(samples, cotangents);
  const ms = performance.now() - started;
  let loss = 0;
  for (const { logprobs } of scores) for (const logprob of logprobs) loss -= logprob;
  // Adapters and weights stay as they are, so that every round computes the same.
  await engine.step({ learningRate: 0, maxGradNorm: 1 });
  return { ms, loss };
}

function batchOf({ rows, time, targets, shape }: Case): { samples: Sample[]; cotangents: Cotangent[] } {
  const random = Random.seeded(2);
  const samples = Array.from({ length: rows }, () => ({
    tokens: Int32Array.from({ length: time }, () => Math.floor(random.next() * shape.vocab_size)),
    lossMask: Uint8Array.from({ length: time }, (_, t) => Number(t > 0 && (t === time - 1 || random.next() < targets))),
  }));
  return { samples, cotangents: samples.map(() => ({ dLogprobs: new Float32Array(time).fill(-1) })) };
}

/** Median over rounds of theirs / ours; null where they did not run. A slow spell of the machine falls on both sides of a round. */
function pairedRatio(theirs: readonly number[], ours: readonly number[]): number | null {
  return theirs.length === 0 ? null : median(theirs.map((ms, round) => ms / (ours[round] ?? NaN)));
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? NaN;
}
