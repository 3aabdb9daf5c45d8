import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";

export const DEFAULT_STATE_DIR = ".fulgur";

/** All that a local installation keeps, under one folder. */
export interface StateDir {
  readonly root: string;
  readonly keys: string;
  readonly store: string;
  readonly edge: string;
  readonly policies: string;
  readonly runs: string;
  readonly logs: string;
}

/** The folder's parts as absolute paths; nothing is made. */
export function stateDir(root: string): StateDir {
  const at = resolve(root);
  return {
    root: at,
    keys: join(at, "keys"),
    store: join(at, "store"),
    edge: join(at, "edge"),
    policies: join(at, "policies"),
    runs: join(at, "runs"),
    logs: join(at, "logs"),
  };
}

/** Makes the folders; keys are private, so the whole state is. */
export async function makeStateDir(state: StateDir): Promise<void> {
  try {
    await mkdir(state.root, { recursive: true, mode: 0o700 });
    for (const folder of [state.store, state.edge, state.policies, state.runs, state.logs])
      await mkdir(folder, { recursive: true });
  } catch (cause) {
    throw new FulgurError(
      "ERR_DISK",
      `the state folder ${state.root} could not be made; check that its parent is writable and the disk is not full`,
      { cause },
    );
  }
}

const runningSchema = z.object({ pid: z.int(), edge_url: z.string(), started_at: z.number() });
export type RunningMark = z.infer<typeof runningSchema>;

/**
 * Marks this process as the one that runs on the folder; other commands learn from it where the edge listens.
 * @throws FulgurError ERR_CONFLICT when another living process has it
 */
export async function claimStateDir(state: StateDir, edgeUrl: string): Promise<() => Promise<void>> {
  const other = await readRunning(state);
  if (other !== undefined && other.pid !== process.pid) {
    throw new FulgurError(
      "ERR_CONFLICT",
      `${state.root} is in use by process ${other.pid} (${other.edge_url}); stop that, or give this one its own with --state-dir and --port-base`,
    );
  }
  const mark: RunningMark = { pid: process.pid, edge_url: edgeUrl, started_at: Date.now() };
  await writeWhole(join(state.root, "running.json"), JSON.stringify(mark));
  return () => rm(join(state.root, "running.json"), { force: true });
}

/** The living process that runs on the folder, if there is one. */
export async function readRunning(state: StateDir): Promise<RunningMark | undefined> {
  const mark = await readJson(join(state.root, "running.json"), runningSchema);
  return mark !== undefined && isAlive(mark.pid) ? mark : undefined;
}

/** The file's value, or undefined where it is missing or not of the schema (a torn write, an older form). */
export async function readJson<S extends z.ZodType>(path: string, schema: S): Promise<z.infer<S> | undefined> {
  try {
    return schema.safeParse(JSON.parse(await readFile(path, "utf8"))).data;
  } catch {
    return undefined;
  }
}

/** Writes aside and renames, so that a reader sees the old text or the new one. */
export async function writeWhole(path: string, content: string | Uint8Array): Promise<void> {
  await writeFile(`${path}.part`, content);
  await rename(`${path}.part`, path);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // Someone else's process is alive too.
    return error instanceof Error && "code" in error && error.code === "EPERM";
  }
}
