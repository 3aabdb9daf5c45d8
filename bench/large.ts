import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import type { BenchResult } from "./result.ts";
import { HALF_BILLION, writeRandomModel } from "./train-parts/model.ts";

/**
 * How large a model the embedded engine trains: one of Qwen2.5-0.5B's shape with random weights, LoRA on all linear layers,
 * a thousand tokens of context. What it takes to open, to step and to score, and how much memory at most.
 */

export const name = "large";
export const about = "a model of Qwen2.5-0.5B's shape: seconds to open and to step, and memory";

const TOKENS = 1024;
const BAR = { loadSeconds: 20, gigabytes: 16 };
const STEP = fileURLToPath(new URL("train-parts/large-step.ts", import.meta.url));

const measured = z.object({
  open_s: z.number(),
  open_peak_bytes: z.number(),
  first_step_s: z.number(),
  step_s: z.number(),
  score_s: z.number(),
  peak_bytes: z.number(),
});

/** Runs the benchmark; there is no peer, so there is no ratio. */
export async function run(): Promise<BenchResult> {
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-large-"));
  try {
    console.error("writing a model of random weights …");
    const parameters = await writeRandomModel(dir, HALF_BILLION, "BF16");
    const { size } = await stat(join(dir, "model.safetensors"));
    const table = [];
    for (const targets of [TOKENS / 4, TOKENS - 1]) {
      console.error(`training on ${targets} of ${TOKENS} tokens …`);
      const found = await inAProcess([dir, String(TOKENS), String(targets)]);
      table.push({
        targets,
        "open s": found.open_s.toFixed(1),
        "first step s": found.first_step_s.toFixed(1),
        "step s": found.step_s.toFixed(1),
        "score s": found.score_s.toFixed(1),
        "peak GB while opening": gigabytes(found.open_peak_bytes),
        "peak GB": gigabytes(found.peak_bytes),
      });
    }
    const notes = [
      `${(parameters / 1e6).toFixed(0)} M parameters, ${gigabytes(size)} GB on disk in bf16, ${gigabytes(parameters * 4)} GB in float32; LoRA rank 16 on all linear layers, one sample of ${TOKENS} tokens, two threads. The first step makes its graph.`,
      `bars: opened within ${BAR.loadSeconds} s, trained within ${BAR.gigabytes} GB; both are the process's own, base and adapter included`,
    ];
    return { name, ratio: null, table, notes };
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

/** In a process of its own, whose peak of memory is the engine's. */
async function inAProcess(args: readonly string[]): Promise<z.infer<typeof measured>> {
  const child = spawn(process.execPath, [STEP, ...args], { stdio: ["ignore", "pipe", "inherit"] });
  let out = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (out += text));
  const [code] = await once(child, "close");
  if (code !== 0) throw new Error(`train-parts/large-step.ts ended with ${String(code)}; what it said is above`);
  return measured.parse(JSON.parse(out));
}

function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(2);
}
