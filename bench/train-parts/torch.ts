/** PyTorch as a peer: one Python process that stays alive and runs forward + backward when asked. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import * as z from "zod";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const SCRIPT = fileURLToPath(new URL("../python/train_torch.py", import.meta.url));

/** The commands that set PyTorch up for the benchmark. */
export const INSTALL_TORCH =
  "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu && .venv/bin/pip install -r test/oracle/requirements.txt";

/** One measured pass. */
export interface TorchPass {
  readonly model: string;
  readonly method: "full" | "lora";
  readonly how: "eager" | "autocast" | "compile";
  readonly tokens: readonly (readonly number[])[];
  /** Same shape as `tokens`; 1 = target. */
  readonly mask: readonly (readonly number[])[];
}

const answerSchema = z.object({ ms: z.number(), loss: z.number() });
const probeSchema = z.object({ bf16_speedup: z.number() });

/** A running PyTorch. */
export interface TorchPeer {
  readonly version: string;
  /** Forward and backward once; milliseconds of it, and Σ −log p of the targets. */
  pass(request: TorchPass): Promise<z.infer<typeof answerSchema>>;
  /** How many times faster a product is in bf16 than in float32: far below 1 on processors without units for it. */
  bf16Speedup(): Promise<number>;
  close(): void;
}

/** Starts PyTorch with so many threads; null when no Python with torch is found (`PYTHON` or `.venv`). */
export function startTorch(threads: number): TorchPeer | null {
  for (const python of [process.env["PYTHON"], `${ROOT}/.venv/bin/python`]) {
    if (python === undefined || (python.includes("/") && !existsSync(python))) continue;
    const tried = spawnSync(python, ["-c", "import torch, transformers, peft; print(torch.__version__)"], {
      encoding: "utf8",
    });
    if (tried.status === 0) return connect(spawnPeer(python, threads), tried.stdout.trim());
  }
  return null;
}

function spawnPeer(python: string, threads: number): ChildProcess {
  return spawn(python, [SCRIPT, String(threads)], {
    stdio: ["pipe", "pipe", "ignore"],
    env: { ...process.env, OMP_NUM_THREADS: String(threads), HF_HUB_OFFLINE: "1" },
  });
}

function connect(child: ChildProcess, version: string): TorchPeer {
  const { stdin, stdout } = child;
  if (stdin === null || stdout === null) throw new Error("PyTorch's process has no pipes");
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
  const ask = async (request: unknown): Promise<unknown> => {
    stdin.write(`${JSON.stringify(request)}\n`);
    const { value, done } = await lines.next();
    if (done === true) throw new Error(`${SCRIPT} ended; run it by hand to see why`);
    return JSON.parse(value);
  };
  return {
    version,
    pass: async (request) => answerSchema.parse(await ask(request)),
    bf16Speedup: async () => probeSchema.parse(await ask({ probe: true })).bf16_speedup,
    close: () => child.kill(),
  };
}
