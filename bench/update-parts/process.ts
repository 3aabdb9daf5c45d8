/** The two trainers as child processes that are spoken to in lines. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import type * as z from "zod";
import { type OurSetup, ourUpdateSchema, type Ready, readySchema, type TrlSetup, trlUpdateSchema } from "./protocol.ts";

const file = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

/** The commands that set TRL up for the benchmark. */
export const INSTALL_TRL =
  "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu && .venv/bin/pip install -r test/oracle/requirements.txt";

/** A trainer that holds a model and a batch, and takes a step with it when asked. */
export interface UpdatePeer<Update> {
  readonly ready: Ready;
  update(): Promise<Update>;
  close(): void;
}

/** Starts ours. */
export function startOurs(setup: OurSetup): Promise<UpdatePeer<z.infer<typeof ourUpdateSchema>>> {
  const args = ["--import", file("runtime-time.ts"), file("ours.ts")];
  const child = spawn(process.execPath, args, { stdio: ["pipe", "pipe", "inherit"] });
  return connect(child, { setup, schema: ourUpdateSchema, name: "our trainer" });
}

/** Path of a Python that has TRL; null where there is none (`PYTHON` or `.venv`). */
export function findTrl(): string | null {
  for (const python of [process.env["PYTHON"], file("../../.venv/bin/python")]) {
    if (python === undefined || (python.includes("/") && !existsSync(python))) continue;
    if (spawnSync(python, ["-c", "import trl, peft, datasets"]).status === 0) return python;
  }
  return null;
}

/** Starts TRL's. */
export function startTrl(python: string, setup: TrlSetup): Promise<UpdatePeer<z.infer<typeof trlUpdateSchema>>> {
  const child = spawn(python, [file("../python/trl_update.py")], {
    stdio: ["pipe", "pipe", "ignore"],
    env: {
      ...process.env,
      OMP_NUM_THREADS: String(setup.threads),
      HF_HUB_OFFLINE: "1",
      TOKENIZERS_PARALLELISM: "false",
    },
  });
  return connect(child, { setup, schema: trlUpdateSchema, name: "bench/python/trl_update.py" });
}

async function connect<Update>(
  child: ChildProcess,
  {
    setup,
    schema,
    name,
  }: { readonly setup: OurSetup | TrlSetup; readonly schema: z.ZodType<Update>; readonly name: string },
): Promise<UpdatePeer<Update>> {
  const { stdin, stdout } = child;
  if (stdin === null || stdout === null) throw new Error(`${name} has no pipes`);
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
  const ask = async (line: string): Promise<unknown> => {
    stdin.write(`${line}\n`);
    const { value, done } = await lines.next();
    if (done === true) throw new Error(`${name} ended; run it by hand to see why`);
    return JSON.parse(value);
  };
  const ready = readySchema.parse(await ask(JSON.stringify(setup)));
  return { ready, update: async () => schema.parse(await ask("go")), close: () => child.kill() };
}
