import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { PRESETS } from "../trainer/algorithm.ts";
import type { Engine } from "../trainer/engine/contract.ts";
import { createTorchEngine } from "../trainer/engine/torch/engine.ts";
import { probePython } from "../trainer/engine/torch/probe.ts";
import { learn } from "../trainer/learn.ts";
import { trainFlops } from "../trainer/metrics/flops.ts";
import type { BenchResult } from "./result.ts";
import { longRollouts, rowsOf } from "./torch-parts/batch.ts";
import { CASE_FLAGS, chosenCases, chosenRounds } from "./train-parts/flags.ts";
import { FIVE_MILLION, type Shape, writeRandomModel } from "./train-parts/model.ts";
import { startTorch } from "./train-parts/torch.ts";
import { type BatchRollout, GROUP_ROLLOUTS, joinedRows, makeBatch } from "./update-parts/batch.ts";
import { findTrl, INSTALL_TRL, startTrl } from "./update-parts/process.ts";
import { ADVANTAGE, groupsOf, recordsOf } from "./update-parts/records.ts";

/**
 * The torch engine on a CPU against plain PyTorch and TRL, or on a GPU against TRL: the same weights and tokens, and the arms
 * take turns, so that whatever else the machine does falls on all of them.
 */

export const name = "torch";
export const about = "the torch engine against plain PyTorch and TRL; --device cuda --shape llama-3.2-3b on a GPU";
export const options = {
  ...CASE_FLAGS,
  device: { type: "string" },
  shape: { type: "string" },
  "peak-tflops": { type: "string" },
} as const;

const THREADS = 2;
const ROUNDS = 5;
/** PyTorch's threads spin on for a moment after their last work, and would slow down whoever comes next. */
const PAUSE_MS = 300;
/** So small that the weights stay where the batch was sampled, round after round. */
const LEARNING_RATE = 1e-7;
/** Dense bf16 of an H100 and an H200 (SXM), in 10^12 operations a second, where no other is given. */
const PEAK_TFLOPS = 989;

interface Setting {
  readonly shape: Shape;
  readonly rollouts: () => BatchRollout[];
  readonly groupSize: number;
  /** Rows of one pass of TRL's. */
  readonly passRows: number;
  readonly precision: "fp32" | "bf16";
}

const LLAMA_3B = {
  hidden_size: 3072,
  intermediate_size: 8192,
  num_hidden_layers: 28,
  num_attention_heads: 24,
  num_key_value_heads: 8,
  vocab_size: 128_256,
  max_position_embeddings: 4096,
};

const SETTINGS: Readonly<Record<string, Setting>> = {
  "5m": {
    shape: FIVE_MILLION,
    rollouts: () => makeBatch(16, FIVE_MILLION.vocab_size),
    groupSize: GROUP_ROLLOUTS,
    passRows: 16,
    precision: "fp32",
  },
  "llama-3.2-3b": {
    shape: LLAMA_3B,
    rollouts: () => longRollouts(4, { size: 8, prompt: 512, response: 1536, vocab: LLAMA_3B.vocab_size }),
    groupSize: 8,
    passRows: 4,
    precision: "bf16",
  },
};

/** Row lengths as a batch of agents has them: a few long, most short. */
const RAGGED = Array.from({ length: 32 }, (_, i) => (i % 8 === 0 ? 256 : 64 + 8 * (i % 7)));

const CASES = [
  { key: "full", title: "forward + backward, full weights, 16×256", method: "full", lengths: Array(16).fill(256) },
  { key: "lora", title: "forward + backward, LoRA rank 16, 16×256", method: "lora", lengths: Array(16).fill(256) },
  { key: "ragged", title: "forward + backward, LoRA, rows of 64 to 256", method: "lora", lengths: RAGGED },
  { key: "update-full", title: "GRPO update, full weights", method: "full", lengths: null },
  { key: "update", title: "GRPO update, LoRA rank 16", method: "lora", lengths: null },
] as const satisfies readonly {
  readonly key: string;
  readonly title: string;
  readonly method: "full" | "lora";
  readonly lengths: readonly number[] | null;
}[];

/** Runs the benchmark; `ratio` is the first case's. */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<BenchResult> {
  const device = oneOf("device", flags["device"] ?? "cpu", ["cpu", "cuda"] as const);
  const shape = oneOf("shape", flags["shape"] ?? (device === "cpu" ? "5m" : "llama-3.2-3b"), Object.keys(SETTINGS));
  const setting = SETTINGS[shape];
  const python = findTrl();
  if (setting === undefined || python === null) return nothing(`TRL is not installed: ${INSTALL_TRL} (or set PYTHON).`);
  if (device === "cuda" && (await probePython(python)).gpus.length === 0) {
    return nothing(
      "PyTorch finds no GPU on this machine, so nothing was measured; the same command measures where it does.",
    );
  }
  // Plain PyTorch's script is for CPUs; on a GPU it is TRL that is met.
  const cases = chosenCases(CASES, flags).filter(({ lengths }) => device === "cpu" || lengths === null);
  const rounds = chosenRounds(flags, ROUNDS);
  const peakTflops = Number(flags["peak-tflops"] ?? PEAK_TFLOPS);
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-torch-"));
  try {
    const model = join(dir, "model");
    const parameters = await writeRandomModel(model, setting.shape, setting.precision === "bf16" ? "BF16" : "F32");
    const world: World = { model, dir, python, device, setting, rounds, peakTflops };
    const table = [];
    for (const each of cases) {
      table.push(await (each.lengths === null ? update(each, world) : pass({ ...each, lengths: each.lengths }, world)));
    }
    const headline = table[0]?.["ratio"];
    return {
      name,
      ratio: typeof headline === "number" ? headline : null,
      table,
      notes: [
        `${parameters.toLocaleString("en")} parameters, ${setting.precision} on both sides, ${device}${device === "cpu" ? `, ${THREADS} threads of ${availableParallelism()} processors` : ""}; medians of ${rounds} rounds in turns, ratios too (each of one round).`,
        "Passes are against PyTorch eager with transformers and PEFT, SDPA attention, rows padded to the longest; updates against TRL's own train() without generation, gradient checkpointing, logging and saving. Arms compute the same: losses and gradient norms are compared in each round.",
      ],
    };
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

interface World {
  readonly model: string;
  readonly dir: string;
  readonly python: string;
  readonly device: "cpu" | "cuda";
  readonly setting: Setting;
  readonly rounds: number;
  readonly peakTflops: number;
}

interface PassCase {
  readonly title: string;
  readonly method: "full" | "lora";
  readonly lengths: readonly number[];
}

function open({ model, python, device, setting }: World, method: "full" | "lora"): Promise<Engine> {
  const { precision } = setting;
  return createTorchEngine({ modelDir: model, method: { type: method }, device, precision, python, threads: THREADS });
}

async function pass({ title, method, lengths }: PassCase, world: World): Promise<Record<string, unknown>> {
  const { samples, cotangents } = rowsOf(lengths, { vocab: world.setting.shape.vocab_size, targets: 0.5 });
  const longest = Math.max(...lengths);
  const padded = (values: ArrayLike<number>): number[] => Array.from({ length: longest }, (_, t) => values[t] ?? 0);
  const request = {
    model: world.model,
    method,
    how: "eager" as const,
    tokens: samples.map(({ tokens }) => padded(tokens)),
    mask: samples.map(({ lossMask }) => padded(lossMask)),
  };
  const engine = await open(world, method);
  const torch = startTorch(THREADS);
  try {
    if (torch === null) throw new Error("PyTorch was found, and then was not");
    const times = { ours: [] as number[], torch: [] as number[] };
    for (let round = 0; round <= world.rounds; round++) {
      const startedAt = performance.now();
      const scores = await engine.backward(samples, cotangents);
      const ours = performance.now() - startedAt;
      await engine.step({ learningRate: 0, maxGradNorm: 1 });
      await pause(PAUSE_MS);
      const theirs = await torch.pass(request);
      const loss = scores.reduce((sum, { logprobs }) => sum - logprobs.reduce((total, each) => total + each, 0), 0);
      if (Math.abs(theirs.loss / loss - 1) > 1e-4) {
        throw new Error(`The arms do not compute the same: loss ${loss} here, ${theirs.loss} in PyTorch.`);
      }
      if (round > 0) {
        times.ours.push(ours);
        times.torch.push(theirs.ms);
      }
      await pause(PAUSE_MS);
    }
    const tokens = lengths.reduce((sum, length) => sum + length, 0);
    return {
      case: title,
      "ours tok/s": (tokens / median(times.ours)) * 1000,
      "peer tok/s": (tokens / median(times.torch)) * 1000,
      ratio: median(times.torch.map((ms, round) => ms / (times.ours[round] ?? NaN))),
      peer: `PyTorch ${torch.version}`,
    };
  } finally {
    torch?.close();
    await engine.close();
  }
}

async function update(
  { key, title, method }: { readonly key: string; readonly title: string; readonly method: "full" | "lora" },
  world: World,
): Promise<Record<string, unknown>> {
  const { model, dir, python, device, setting, rounds, peakTflops } = world;
  const { precision, passRows } = setting;
  const rollouts = setting.rollouts();
  const engine = await open(world, method);
  const adapter = join(dir, `adapter-${key}`);
  if (method === "lora") await engine.exportAdapter(adapter);
  const records = await recordsOf(rollouts, engine);
  const shared = { model, method, adapter, klCoefficient: 0, learningRate: LEARNING_RATE, threads: THREADS };
  const rows = joinedRows(rollouts);
  const trl = await startTrl(python, { ...shared, rows, group: setting.groupSize, passRows, device, precision });
  try {
    const times = { ours: [] as number[], trl: [] as number[] };
    for (let round = 0; round <= rounds; round++) {
      const startedAt = performance.now();
      const report = await learn(groupsOf(records).groups, {
        engine,
        loss: { ...PRESETS.grpo.loss, klCoefficient: 0 },
        advantage: ADVANTAGE,
        learningRate: LEARNING_RATE,
        maxGradNorm: 1,
        updates: 1,
        now: () => performance.now(),
      });
      const ours = performance.now() - startedAt;
      await pause(PAUSE_MS);
      const theirs = await trl.update();
      // bf16 rounds gradients in other places.
      if (Math.abs(theirs.gradNorm / report.grad_norm - 1) > (precision === "bf16" ? 0.05 : 1e-3)) {
        throw new Error(`The arms do not compute the same: norm ${report.grad_norm}, ${theirs.gradNorm} in TRL.`);
      }
      if (round > 0) {
        times.ours.push(ours);
        times.trl.push(theirs.ms);
      }
      await pause(PAUSE_MS);
    }
    const samples = rows.map(({ prompt, completion, mask }) => ({
      tokens: Int32Array.of(...prompt, ...completion),
      lossMask: Uint8Array.of(...prompt.map(() => 0), ...mask),
    }));
    const tokens = samples.reduce((sum, row) => sum + row.tokens.length, 0);
    const mfu = (ms: number): number => trainFlops(samples, engine.info) / (ms / 1000) / (peakTflops * 1e12);
    return {
      case: title,
      "ours tok/s": (tokens / median(times.ours)) * 1000,
      "peer tok/s": (tokens / median(times.trl)) * 1000,
      ratio: median(times.trl.map((ms, round) => ms / (times.ours[round] ?? NaN))),
      peer: `TRL ${trl.ready.version}`,
      ...(device === "cuda" ? { "ours MFU": mfu(median(times.ours)), "peer MFU": mfu(median(times.trl)) } : {}),
    };
  } finally {
    trl.close();
    await engine.close();
  }
}

function nothing(note: string): BenchResult {
  return { name, ratio: null, table: [], notes: [note] };
}

function oneOf<T extends string>(flag: string, given: unknown, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === given);
  if (found === undefined) throw new Error(`--${flag} takes one of ${choices.join(", ")}, not ${String(given)}`);
  return found;
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? NaN;
}
