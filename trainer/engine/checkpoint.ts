/**
 * Training checkpoints, the same for every engine: a folder with the trained weights, the optimizer's moments and
 * `checkpoint.json`, which names the files' sha256 and what they belong to. The folder is written aside and renamed, so it is
 * whole or absent.
 */

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, open, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { pipeline } from "node:stream/promises";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { syncFolder } from "../model/safetensors.ts";
import type { RandomState } from "./random.ts";

const FORMAT = 1;
/** Trained weights, AdamW's mean of gradients or Muon's momentum, and the mean of squared gradients; by the weights' names. */
export const CHECKPOINT_FILES = [
  "weights.safetensors",
  "first-moments.safetensors",
  "second-moments.safetensors",
] as const;
const word = z
  .int()
  .min(-(2 ** 31))
  .max(2 ** 32);

const manifestSchema = z.strictObject({
  format: z.literal(FORMAT),
  /** What the tensors belong to; compared as a whole with the engine's own. */
  identity: z.string(),
  /** Optimizer steps taken. */
  step: z.int().nonnegative(),
  random: z.tuple([word, word, word, word]),
  sha256: z.record(z.enum(CHECKPOINT_FILES), z.string().regex(/^[0-9a-f]{64}$/)),
});
type Manifest = z.infer<typeof manifestSchema>;

/** A checkpoint without its tensors. */
export interface CheckpointState {
  readonly identity: string;
  readonly step: number;
  readonly random: RandomState;
}

/**
 * Writes a checkpoint folder. One that is there already is replaced.
 * @param writeTensors writes and syncs `CHECKPOINT_FILES` into a folder
 * @throws FulgurError ERR_DISK when it cannot be written
 */
export async function writeCheckpointFolder(
  dir: string,
  { identity, step, random }: CheckpointState,
  writeTensors: (aside: string) => Promise<void>,
): Promise<void> {
  const aside = `${dir}.${process.pid}.tmp`;
  try {
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true });
    await writeTensors(aside);
    const [weights, firstMoments, secondMoments] = CHECKPOINT_FILES;
    const manifest: Manifest = {
      format: FORMAT,
      identity,
      step,
      random: [...random],
      sha256: {
        [weights]: await sha256Of(join(aside, weights)),
        [firstMoments]: await sha256Of(join(aside, firstMoments)),
        [secondMoments]: await sha256Of(join(aside, secondMoments)),
      },
    };
    await writeSynced(join(aside, "checkpoint.json"), `${JSON.stringify(manifest, null, 2)}\n`);
    await syncFolder(aside);
    await replaceFolder(aside, dir);
  } catch (cause) {
    await rm(aside, { recursive: true, force: true });
    throw new FulgurError(
      "ERR_DISK",
      `Cannot write the checkpoint ${dir} (${messageOf(cause)}). Check its folder and free space.`,
      {
        cause,
      },
    );
  }
}

/**
 * Reads a checkpoint folder's manifest and proves its files.
 * @param identity what the engine is; a checkpoint of anything else is refused
 * @throws FulgurError ERR_CHECKPOINT when it is missing, torn, altered or foreign
 */
export async function proveCheckpointFolder(dir: string, identity: string): Promise<CheckpointState> {
  let text = "";
  try {
    text = await readFile(join(dir, "checkpoint.json"), "utf8");
  } catch (cause) {
    throw refusal(
      dir,
      `is no checkpoint (${messageOf(cause)}). Name a folder that a save wrote, or start without one.`,
      cause,
    );
  }
  const parsed = manifestSchema.safeParse(parseJson(text));
  if (!parsed.success) throw refusal(dir, "has an unreadable checkpoint.json. Resume from an earlier checkpoint.");
  const manifest = parsed.data;
  if (manifest.identity !== identity) {
    throw refusal(
      dir,
      `belongs to "${manifest.identity}", but this engine is "${identity}". Resume with the model and method it was made with.`,
    );
  }
  for (const file of CHECKPOINT_FILES) {
    const actual = await sha256Of(join(dir, file)).catch((cause: unknown) => {
      throw refusal(dir, `is torn: ${messageOf(cause)} Resume from an earlier checkpoint.`, cause);
    });
    if (actual !== manifest.sha256[file]) {
      throw refusal(
        dir,
        `is torn or altered: ${file} has sha256 ${actual.slice(0, 12)}…, not ${manifest.sha256[file].slice(0, 12)}…. Resume from an earlier checkpoint.`,
      );
    }
  }
  return { identity, step: manifest.step, random: manifest.random };
}

function refusal(dir: string, what: string, cause?: unknown): FulgurError {
  return new FulgurError("ERR_CHECKPOINT", `${dir} ${what}`, { cause });
}

/** Writes a file and syncs it. */
export async function writeSynced(path: string, text: string): Promise<void> {
  const file = await open(path, "w");
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

/**
 * Renames a finished folder into place; what stood there is moved away first and then deleted. Between the two renames
 * neither is there: whoever cannot afford that gives each checkpoint a name of its own.
 */
export async function replaceFolder(finished: string, dir: string): Promise<void> {
  const old = `${dir}.${process.pid}.old`;
  await rm(old, { recursive: true, force: true });
  try {
    await rename(dir, old);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOENT")) throw error;
  }
  await rename(finished, dir);
  await syncFolder(dirname(dir));
  await rm(old, { recursive: true, force: true });
}

async function sha256Of(path: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(path), hash);
  return hash.digest("hex");
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
