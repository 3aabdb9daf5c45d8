import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { Cotangent, Engine, Sample } from "../trainer/engine/contract.ts";
import { createOnnxEngine } from "../trainer/engine/onnx/engine.ts";
import { Random } from "../trainer/engine/random.ts";
import type { BenchResult } from "./result.ts";
import { CASE_FLAGS, chosenCases, chosenRounds } from "./train-parts/flags.ts";
import { FIVE_MILLION, type Shape, writeRandomModel } from "./train-parts/model.ts";
import { INSTALL_TORCH, startTorch, type TorchPeer } from "./train-parts/torch.ts";

/**
 * Forward and backward of the onnx engine against PyTorch eager on the same weights and tokens: each round runs every
 * arm once, in turns, so that whatever else the machine does falls on all of them.
 */

export const name = "train";
export const about = "forward and backward against PyTorch eager";
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
  /** Whether PyTorch also runs in bf16 autocast. */
  readonly bf16: boolean;
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
    bf16: true,
  },
  {
    key: "lora",
    title: "5 M, LoRA rank 16, 16×256",
    shape: FIVE_MILLION,
    method: "lora",
    rows: 16,
    time: 256,
    targets: 1,
    bf16: false,
  },
  {
    key: "small",
    title: "1 M, full weights, 32×190, 20% targets",
    shape: ONE_MILLION,
    method: "full",
    rows: 32,
    time: 190,
    targets: 0.2,
    bf16: false,
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
          : `PyTorch ${torch.version} eager, transformers, SDPA attention; bf16 is its autocast, run only on processors with bf16 units; ONNX Runtime's CPU kernels have none of it.`,
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
    const times = { ours: [] as number[], torch: [] as number[], bf16: [] as number[] };
    let bf16 = case_.bf16;
    // The first round opens sessions and loads models.
    for (let round = 0; round <= rounds; round++) {
      const ours = await oursOnce(engine, samples, cotangents);
      if (round > 0) times.ours.push(ours.ms);
      await pause(PAUSE_MS);
      if (torch === null) continue;
      const theirs = await torch.pass({ ...request, autocast: false });
      if (round > 0) times.torch.push(theirs.ms);
      // Random adapters differ, but both start at zero: the loss is the base model's for both methods.
      if (Math.abs(theirs.loss / ours.loss - 1) > 1e-4) {
        throw new Error(`The arms do not compute the same: loss ${ours.loss} here, ${theirs.loss} in PyTorch.`);
      }
      await pause(PAUSE_MS);
      if (!bf16) continue;
      if (round === 0) {
        // Processors without bf16 units emulate it, tens of times slower: one row tells, a whole batch takes a minute.
        const row = { ...request, tokens: request.tokens.slice(0, 1), mask: request.mask.slice(0, 1), autocast: true };
        await torch.pass(row);
        bf16 = (await torch.pass(row)).ms < theirs.ms / 2;
      } else {
        times.bf16.push((await torch.pass({ ...request, autocast: true })).ms);
      }
      await pause(PAUSE_MS);
    }
    const tokens = case_.rows * case_.time;
    const rate = (ms: readonly number[]): number | null => (ms.length === 0 ? null : (tokens / median(ms)) * 1000);
    return {
      case: case_.title,
      parameters,
      "ours tok/s": rate(times.ours),
      "torch fp32 tok/s": rate(times.torch),
      ratio: pairedRatio(times.torch, times.ours),
      "torch bf16 tok/s": rate(times.bf16),
      "ratio to bf16": pairedRatio(times.bf16, times.ours),
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
