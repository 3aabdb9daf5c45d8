/** What a Python has of what the worker needs. */

import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { WORKER_FOLDER } from "./python.ts";

const probeSchema = z.object({
  /** Version of the interpreter. */
  python: z.string(),
  /** Version of each package; null for one that is not installed. */
  packages: z.record(z.string(), z.string().nullable()),
  /** Names of the GPUs that PyTorch sees. */
  gpus: z.array(z.string()),
});
export type Probe = z.infer<typeof probeSchema>;

/** The packages that the worker imports, and the versions that it was tried with. */
export async function requirements(): Promise<Map<string, string>> {
  const text = await readFile(join(WORKER_FOLDER, "requirements.txt"), "utf8");
  return new Map(
    text
      .split("\n")
      .filter((line) => line.includes("=="))
      .map((line) => {
        const [name = "", version = ""] = line.trim().split("==");
        return [name, version] as const;
      }),
  );
}

/** Asks an interpreter; imports torch, which takes seconds. @throws FulgurError ERR_PLATFORM when it cannot be started */
export async function probePython(python: string): Promise<Probe> {
  const packages = [...(await requirements()).keys()];
  try {
    const { stdout } = await promisify(execFile)(python, [join(WORKER_FOLDER, "worker", "probe.py"), ...packages], {
      timeout: 120_000,
    });
    return probeSchema.parse(JSON.parse(stdout));
  } catch (cause) {
    throw new FulgurError("ERR_PLATFORM", `cannot run ${python} (${messageOf(cause).split("\n")[0]})`, { cause });
  }
}
