/** Which Python the torch engine runs in, and what to do where it has not got what is needed. */

import { accessSync, constants } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));

/** The command that makes an environment with all that the worker imports, at the versions it was tried with. */
export const INSTALL = "python3 -m venv .venv && .venv/bin/pip install -r trainer/engine/torch/requirements.txt";

/** The folder that holds the worker's package. */
export const WORKER_FOLDER = dirname(fileURLToPath(import.meta.url));

/**
 * The interpreter: the one that was asked for, else FULGUR_PYTHON, else `.venv` of this folder, else `python3`. A name
 * without a slash is looked up on the PATH when it is started.
 */
export function pythonPath(asked: string | undefined, env: Readonly<Record<string, string | undefined>>): string {
  const named = asked ?? env["FULGUR_PYTHON"];
  if (named !== undefined && named !== "") return named;
  const own = join(ROOT, ".venv", "bin", "python");
  return isExecutable(own) ? own : "python3";
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
