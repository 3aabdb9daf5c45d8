/** Finds a Python with PyTorch and runs the oracles' scripts with it. */

import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const ROOT = join(HERE, "..", "..");
// One thread: the models are tiny, and a pool of threads costs more than it saves.
const ENVIRONMENT = { ...process.env, OMP_NUM_THREADS: "1", HF_HUB_OFFLINE: "1", TRANSFORMERS_VERBOSITY: "error" };

/** Path of a Python that has torch, transformers and peft; null when there is none (see README.md here). */
export function findPython(): string | null {
  const candidates = [process.env["PYTHON"], join(ROOT, ".venv", "bin", "python")];
  for (const candidate of candidates) {
    if (candidate === undefined || (candidate.includes("/") && !existsSync(candidate))) continue;
    const tried = spawnSync(candidate, ["-c", "import torch, transformers, peft"], { env: ENVIRONMENT });
    if (tried.status === 0) return candidate;
  }
  return null;
}

/** Whether a Python has a module that only some oracles need. */
export function hasModule(python: string, name: string): boolean {
  return spawnSync(python, ["-c", `import ${name}`], { env: ENVIRONMENT }).status === 0;
}

/** Runs a script of this folder and returns what it printed. */
export function runOracle(python: string, script: string, args: readonly string[], input = ""): string {
  return execFileSync(python, [join(HERE, script), ...args], {
    env: ENVIRONMENT,
    encoding: "utf8",
    input,
    stdio: ["pipe", "pipe", "ignore"],
  });
}

/** A folder of fixtures, and what to call when it is no longer needed. */
export interface Fixtures {
  readonly dir: string;
  readonly release: () => void;
}

/** The engine's fixtures: made now where Python is set up, the committed ones otherwise. */
export function engineFixtures(python: string | null): Fixtures {
  if (python === null) {
    console.info("Oracle: no Python with torch (PYTHON or .venv); using the committed fixtures.");
    return { dir: join(HERE, "fixtures", "engine"), release: () => {} };
  }
  const dir = mkdtempSync(join(tmpdir(), "fulgur-oracle-"));
  runOracle(python, "make_engine_fixtures.py", [dir]);
  console.info("Oracle: comparing with what PyTorch computes now.");
  return { dir, release: () => rmSync(dir, { recursive: true, force: true }) };
}
