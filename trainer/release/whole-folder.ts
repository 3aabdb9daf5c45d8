import { createHash } from "node:crypto";
import { mkdir, open, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { faultPoint } from "../fault-point.ts";

/**
 * Folders that are whole or absent: written aside, listed in a manifest with the sha256 of every file, synced, renamed.
 * A crash leaves a folder aside, which the next write removes; a folder under its own name is complete.
 */

export const MANIFEST = "manifest.json";
const ASIDE = ".writing";
const RETIRED = ".removing";

const sha256Schema = z.string().regex(/^[0-9a-f]{64}$/);
export const manifestSchema = z.looseObject({
  name: z.string(),
  sha256: z.record(z.string(), sha256Schema),
});

export interface WholeFolder {
  /** sha256 of the manifest's bytes, in hex: stands for all files. */
  readonly sha256: string;
}

/**
 * Writes a folder.
 * @param fill writes the files into the folder that it is given
 * @param facts go into the manifest beside the hashes
 * @throws FulgurError ERR_DISK when it cannot be written; nothing is left under its name then
 */
export async function writeWholeFolder(
  dir: string,
  fill: (aside: string) => Promise<void>,
  facts: { readonly name: string } & Readonly<Record<string, unknown>>,
): Promise<WholeFolder> {
  const aside = `${dir}${ASIDE}`;
  try {
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true });
    await fill(aside);
    faultPoint("folder.filled");
    const sha256: Record<string, string> = {};
    for (const file of await filesUnder(aside)) {
      sha256[file] = digest(await readFile(join(aside, file)));
      await sync(join(aside, file));
    }
    const manifest = Buffer.from(manifestText({ ...facts, sha256 }));
    const handle = await open(join(aside, MANIFEST), "w");
    try {
      await handle.writeFile(manifest);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await sync(aside);
    faultPoint("folder.listed");
    await rename(aside, dir);
    faultPoint("folder.renamed");
    await sync(dirname(dir));
    return { sha256: digest(manifest) };
  } catch (cause) {
    await rm(aside, { recursive: true, force: true }).catch(() => undefined);
    if (!(cause instanceof Error && "syscall" in cause)) throw cause;
    throw new FulgurError(
      "ERR_DISK",
      `${dir} could not be written (${messageOf(cause)}); free some space or check its owner, then start again: the run resumes`,
      { cause },
    );
  }
}

/**
 * Removes folders that are whole: each is gone from its name before the first of its files is. What a crash left of an
 * earlier removal goes too. Repeatable.
 * @param parent folder that they lie in
 */
export async function removeWholeFolders(parent: string, names: readonly string[]): Promise<void> {
  for (const name of names) {
    await rename(join(parent, name), join(parent, `${name}${RETIRED}`));
    faultPoint("folder.retired");
  }
  for (const name of await readdir(parent)) {
    if (name.endsWith(RETIRED)) await rm(join(parent, name), { recursive: true, force: true });
  }
}

/**
 * Proves a folder against its manifest.
 * @returns undefined when there is no such folder
 * @throws FulgurError ERR_CHECKPOINT when a file is missing, altered or torn, or the manifest is unreadable
 */
export async function proveWholeFolder(
  dir: string,
): Promise<(WholeFolder & { readonly manifest: z.infer<typeof manifestSchema> }) | undefined> {
  if (!(await exists(dir))) return undefined;
  let bytes: Buffer;
  let manifest: z.infer<typeof manifestSchema>;
  try {
    bytes = await readFile(join(dir, MANIFEST));
    const value: unknown = JSON.parse(bytes.toString("utf8"));
    manifest = manifestSchema.parse(value);
    // It has no digest of its own: a changed byte that leaves it readable shows in what it says, or in how.
    if (manifestText(value) !== bytes.toString("utf8")) throw new Error("it is not as it was written");
  } catch (cause) {
    throw refusal(dir, `its ${MANIFEST} is missing, unreadable or altered`, cause);
  }
  for (const [file, promised] of Object.entries(manifest.sha256)) {
    const content = await readFile(join(dir, file)).catch((cause: unknown) => {
      throw refusal(dir, `${file} cannot be read`, cause);
    });
    const came = digest(content);
    if (came !== promised) {
      throw refusal(dir, `${file} has sha256 ${came.slice(0, 12)}…, its manifest says ${promised.slice(0, 12)}…`);
    }
  }
  return { sha256: digest(bytes), manifest };
}

function manifestText(manifest: unknown): string {
  return `${JSON.stringify(manifest, null, 2)}\n`;
}

function refusal(dir: string, what: string, cause?: unknown): FulgurError {
  return new FulgurError(
    "ERR_CHECKPOINT",
    `${dir} is torn or was altered: ${what}; restore the folder, or begin another run`,
    { cause },
  );
}

async function filesUnder(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(dir, join(entry.parentPath, entry.name)))
    .toSorted();
}

async function exists(dir: string): Promise<boolean> {
  try {
    await readdir(dir);
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return false;
    throw error;
  }
}

async function sync(path: string): Promise<void> {
  const handle = await open(path, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

function digest(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
