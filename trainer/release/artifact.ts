import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import { versionName } from "#shared/words.ts";
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
  readonly policy: string;
  readonly version: number;
  /** Folder that holds the policy's versions. */
  readonly versions: string;
  /** sha256 of the base model's weights, where they are one file: inference refuses an adapter of another base. */
  readonly baseSha256: string | undefined;
}

/**
 * Exports the engine's weights as a version, or proves the one that is there: the same checkpoint gives the same bytes,
 * so that after a crash between export and registration nothing is written twice.
 * @throws FulgurError ERR_CHECKPOINT when a folder of that version is there and is not what its manifest says
 */
export async function exportVersion(
  engine: Pick<Engine, "info" | "exportAdapter" | "exportWeights">,
  options: ArtifactOptions,
): Promise<Artifact> {
  const { policy, version, versions, baseSha256 } = options;
  const kind = engine.info.method === "lora" ? "adapter" : "weights";
  const folder = join(versions, String(version));
  const name = versionName(policy, version);
  const there = await proveWholeFolder(folder);
  if (there !== undefined) {
    if (there.manifest.name === name) return { folder, kind, sha256: there.sha256 };
    throw new FulgurError("ERR_CHECKPOINT", `${folder} holds ${there.manifest.name}, not ${name}; move it away`);
  }
  const { sha256 } = await writeWholeFolder(
    folder,
    (aside) => (kind === "adapter" ? engine.exportAdapter(aside) : engine.exportWeights(aside)),
    { name, ...(baseSha256 === undefined || kind === "weights" ? {} : { base_sha256: baseSha256 }) },
  );
  return { folder, kind, sha256 };
}

/** sha256 of a base model's weights as its manifest has it; undefined where it has none or they are several files. */
export async function baseWeightsSha256(folder: string): Promise<string | undefined> {
  const text = await readFile(join(folder, MANIFEST), "utf8").catch(() => undefined);
  return text === undefined ? undefined : manifestSchema.safeParse(JSON.parse(text)).data?.sha256["model.safetensors"];
}
