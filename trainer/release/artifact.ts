import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import type { Engine } from "../engine/contract.ts";
import { MANIFEST, manifestSchema, proveWholeFolder, writeWholeFolder } from "./whole-folder.ts";

/** A version on disk, as inference loads it. */
export interface Artifact {
  readonly folder: string;
  readonly kind: "adapter" | "weights";
  /** Of its manifest's bytes: what the store keeps for the version. */
  readonly sha256: string;
}

export interface ArtifactOptions {
  /** That inference serves the version under. */
  readonly name: string;
  readonly version: number;
  /** The batch that was trained into it. */
  readonly batchId: string;
  /** Folder that holds the policy's versions. */
  readonly versions: string;
  /** sha256 of the base model's weights, where they are one file: inference refuses an adapter of another base. */
  readonly baseSha256: string | undefined;
}

/**
 * Exports the engine's weights as a version, or proves the one that is there: the same checkpoint gives the same bytes,
 * so that after a crash between export and registration nothing is written twice. A folder that another batch left
 * under the number is never taken for it: old weights under a new name are the failure that nobody notices.
 * @throws FulgurError ERR_CHECKPOINT when a folder of that version is there and is of another batch, or altered
 */
export async function exportVersion(
  engine: Pick<Engine, "info" | "exportAdapter" | "exportWeights">,
  options: ArtifactOptions,
): Promise<Artifact> {
  const { name, version, batchId, versions, baseSha256 } = options;
  const kind = engine.info.method === "lora" ? "adapter" : "weights";
  const folder = join(versions, String(version));
  const there = await proveWholeFolder(folder);
  if (there !== undefined) {
    const { name: heldName, batch_id: heldBatch } = there.manifest;
    if (heldName === name && heldBatch === batchId) return { folder, kind, sha256: there.sha256 };
    throw new FulgurError(
      "ERR_CHECKPOINT",
      `${folder} holds ${heldName} of batch ${String(heldBatch)}, and ${name} of batch ${batchId} belongs there; start again: the run resumes under a number that is free, and if it says this once more, move the folder away first`,
    );
  }
  const { sha256 } = await writeWholeFolder(
    folder,
    (aside) => (kind === "adapter" ? engine.exportAdapter(aside) : engine.exportWeights(aside)),
    { name, batch_id: batchId, ...(baseSha256 === undefined || kind === "weights" ? {} : { base_sha256: baseSha256 }) },
  );
  return { folder, kind, sha256 };
}

/** The highest version number that has a folder, registered or not; 0 for none. */
export async function lastVersionOnDisk(versions: string): Promise<number> {
  return Math.max(0, ...(await versionsOnDisk(versions)));
}

/** The version that a batch was exported as, of those after another one; undefined where it was not. */
export async function versionOfBatch(versions: string, batchId: string, after: number): Promise<number | undefined> {
  for (const version of await versionsOnDisk(versions)) {
    if (version <= after) continue;
    const text = await readFile(join(versions, String(version), MANIFEST), "utf8").catch(() => "{}");
    if (manifestSchema.partial().safeParse(parsed(text)).data?.["batch_id"] === batchId) return version;
  }
  return undefined;
}

async function versionsOnDisk(versions: string): Promise<number[]> {
  const names = await readdir(versions).catch(() => []);
  return names.filter((name) => /^\d{1,9}$/.test(name)).map(Number);
}

/** What is not JSON says nothing; the folder is proven before it is used. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** sha256 of a base model's weights as its manifest has it; undefined where it has none or they are several files. */
export async function baseWeightsSha256(folder: string): Promise<string | undefined> {
  const text = await readFile(join(folder, MANIFEST), "utf8").catch(() => undefined);
  return text === undefined ? undefined : manifestSchema.safeParse(JSON.parse(text)).data?.sha256["model.safetensors"];
}
