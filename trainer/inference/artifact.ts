/**
 * A policy version on disk: a PEFT adapter folder or a Hugging Face folder of full weights, with the `manifest.json`
 * that proves it. Nothing of it is used before it is proven.
 */

import { createHash, hash as hashBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { type Architecture, readArchitecture, weightShapes } from "../model/architecture.ts";
import { openSafetensorsBytes, readModelWeights, type Tensor } from "../model/safetensors.ts";
import type { LoraDelta } from "./packed-weights.ts";

/** What changes the base weights into a version's. */
export type Artifact =
  | { readonly type: "adapter"; readonly lora: ReadonlyMap<string, LoraDelta>; readonly digest: string }
  | { readonly type: "weights"; readonly weights: ReadonlyMap<string, Tensor>; readonly digest: string };

const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
const manifestSchema = z.looseObject({
  name: z.string(),
  sha256: z.record(z.string(), sha256),
  base_sha256: sha256.optional(),
});

const adapterConfigSchema = z.looseObject({
  peft_type: z.literal("LORA"),
  r: z.int().positive(),
  lora_alpha: z.number(),
  use_rslora: z.boolean().default(false),
  use_dora: z.boolean().default(false),
  bias: z.string().default("none"),
  rank_pattern: z.record(z.string(), z.number()).nullish(),
  alpha_pattern: z.record(z.string(), z.number()).nullish(),
  modules_to_save: z.array(z.string()).nullish(),
});

/** What a version is checked against. */
export interface ArtifactContext {
  /** The name that it is loaded under, such as `flight@13`. */
  readonly name: string;
  readonly architecture: Architecture;
  /** sha256 of the base model's weights; computed only when a manifest names one. */
  readonly baseSha256: () => Promise<string>;
}

/**
 * Reads and proves an artifact.
 * @throws FulgurError ERR_CHECKPOINT when a file is missing, torn, foreign, or not what the manifest says
 */
export async function readArtifact(folder: string, context: ArtifactContext): Promise<Artifact> {
  const { isAdapter, hasManifest, files } = await listArtifact(folder);
  // An adapter is small: what is hashed is what is used, and read once.
  const contents = isAdapter ? await readFiles(folder, files) : null;
  const digests =
    contents === null
      ? await hashFiles(folder, files)
      : new Map([...contents].map(([file, bytes]) => [file, hashBytes("sha256", bytes)]));
  if (hasManifest) await checkManifest(folder, digests, context);
  const digest = digestOf(digests);
  try {
    return contents === null
      ? { type: "weights", weights: await readFullWeights(folder, context.architecture), digest }
      : { type: "adapter", lora: await readAdapter(folder, contents, context.architecture), digest };
  } catch (cause) {
    if (cause instanceof FulgurError && cause.code === "ERR_CHECKPOINT") throw cause;
    throw refusal(folder, `cannot be used: ${messageOf(cause)}`, cause);
  }
}

/**
 * One digest over the files of an artifact, without reading it into memory; equal to that of `readArtifact`.
 * @throws FulgurError ERR_CHECKPOINT when the folder holds no artifact
 */
export async function artifactDigest(folder: string): Promise<string> {
  const { files } = await listArtifact(folder);
  return digestOf(await hashFiles(folder, files));
}

/** sha256 of a file, in hex, without holding it in memory. @throws Error as reading it does */
export async function hashFile(path: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), hash);
  return hash.digest("hex");
}

async function listArtifact(
  folder: string,
): Promise<{ isAdapter: boolean; hasManifest: boolean; files: readonly string[] }> {
  const names = await readdir(folder).catch((cause: unknown) => {
    throw refusal(
      folder,
      `cannot be read (${messageOf(cause)}); give the folder of an adapter or of full weights`,
      cause,
    );
  });
  const isAdapter = names.includes("adapter_config.json");
  const isWeights = names.some((name) => name === "model.safetensors" || name === "model.safetensors.index.json");
  if (!isAdapter && !isWeights) {
    throw refusal(folder, "has neither adapter_config.json nor model.safetensors; export the version again");
  }
  const files = isAdapter
    ? ["adapter_config.json", "adapter_model.safetensors"]
    : names.filter((name) => name === "config.json" || name.endsWith(".safetensors")).toSorted();
  return { isAdapter, hasManifest: names.includes("manifest.json"), files };
}

function digestOf(digests: ReadonlyMap<string, string>): string {
  return createHash("sha256")
    .update(JSON.stringify([...digests]))
    .digest("hex");
}

function hashFiles(folder: string, files: readonly string[]): Promise<Map<string, string>> {
  return eachFile(folder, files, hashFile);
}

function readFiles(folder: string, files: readonly string[]): Promise<Map<string, Uint8Array>> {
  return eachFile(folder, files, (path) => readFile(path));
}

/** What is made of each file, by its name. */
async function eachFile<Made>(
  folder: string,
  files: readonly string[],
  make: (path: string) => Promise<Made>,
): Promise<Map<string, Made>> {
  const entries = files.map(async (file): Promise<[string, Made]> => {
    try {
      return [file, await make(join(folder, file))];
    } catch (cause) {
      throw refusal(folder, `lacks a readable ${file} (${messageOf(cause)}); export the version again`, cause);
    }
  });
  return new Map(await Promise.all(entries));
}

async function checkManifest(
  folder: string,
  digests: ReadonlyMap<string, string>,
  { name, baseSha256 }: ArtifactContext,
): Promise<void> {
  const parsed = manifestSchema.safeParse(parseJson(await readFile(join(folder, "manifest.json"), "utf8")));
  if (!parsed.success)
    throw refusal(folder, "has a manifest.json that is not { name, sha256 }; export the version again");
  const manifest = parsed.data;
  if (manifest.name !== name) {
    throw refusal(folder, `is "${manifest.name}" by its manifest.json, but was to be loaded as "${name}"`);
  }
  for (const [file, digest] of digests) {
    const promised = manifest.sha256[file];
    if (promised === undefined) throw refusal(folder, `has ${file}, which its manifest.json does not list`);
    if (promised !== digest) {
      throw refusal(
        folder,
        `is not what its manifest.json says: ${file} has sha256 ${digest}, promised was ${promised}; export or copy it again`,
      );
    }
  }
  if (manifest.base_sha256 === undefined) return;
  const base = await baseSha256();
  if (manifest.base_sha256 !== base) {
    throw refusal(
      folder,
      `was trained on a base with sha256 ${manifest.base_sha256}, but this endpoint serves ${base}; start it with --model of that base`,
    );
  }
}

async function readAdapter(
  folder: string,
  contents: ReadonlyMap<string, Uint8Array>,
  architecture: Architecture,
): Promise<Map<string, LoraDelta>> {
  const bytesOf = (file: string): Uint8Array => contents.get(file) ?? new Uint8Array(0);
  const parsed = adapterConfigSchema.safeParse(parseJson(Buffer.from(bytesOf("adapter_config.json")).toString("utf8")));
  if (!parsed.success) {
    throw refusal(
      folder,
      `has an adapter_config.json that is no LoRA config (${parsed.error.issues[0]?.message ?? ""})`,
    );
  }
  const config = parsed.data;
  const unsupported = [
    config.use_dora ? "use_dora" : null,
    config.bias !== "none" ? `bias "${config.bias}"` : null,
    (config.modules_to_save?.length ?? 0) > 0 ? "modules_to_save" : null,
    Object.keys(config.rank_pattern ?? {}).length > 0 ? "rank_pattern" : null,
    Object.keys(config.alpha_pattern ?? {}).length > 0 ? "alpha_pattern" : null,
  ].filter((feature) => feature !== null);
  if (unsupported.length > 0)
    throw refusal(folder, `uses ${unsupported.join(", ")}, which this endpoint does not support`);

  const tensors = await readAll(bytesOf("adapter_model.safetensors"), join(folder, "adapter_model.safetensors"));
  const scale = config.lora_alpha / (config.use_rslora ? Math.sqrt(config.r) : config.r);
  const shapes = weightShapes(architecture);
  const lora = new Map<string, LoraDelta>();
  for (const [key, a] of tensors) {
    const layer = /^base_model\.model\.(.+)\.lora_A\.weight$/.exec(key)?.[1];
    if (layer === undefined) {
      if (key.endsWith(".lora_B.weight")) continue;
      throw refusal(folder, `has the tensor "${key}", which is no LoRA matrix of a linear layer`);
    }
    const b = tensors.get(`base_model.model.${layer}.lora_B.weight`);
    const [out = 0, input = 0] = shapes.get(`${layer}.weight`) ?? [];
    const fits =
      layer !== "model.embed_tokens" &&
      b !== undefined &&
      a.shape.join() === [config.r, input].join() &&
      b.shape.join() === [out, config.r].join();
    if (!fits) {
      throw refusal(
        folder,
        `does not fit the base model at "${layer}": wanted [${config.r}, ${input}] and [${out}, ${config.r}], got [${a.shape.join(", ")}] and [${b?.shape.join(", ") ?? "nothing"}]`,
      );
    }
    lora.set(layer, { a, b, scale });
  }
  if (lora.size === 0) throw refusal(folder, "holds no LoRA matrices");
  return lora;
}

async function readAll(bytes: Uint8Array, path: string): Promise<Map<string, Tensor>> {
  const file = await openSafetensorsBytes(bytes, path);
  const tensors = new Map<string, Tensor>();
  for (const name of file.names) tensors.set(name, await file.read(name));
  return tensors;
}

async function readFullWeights(folder: string, base: Architecture): Promise<Map<string, Tensor>> {
  const architecture = await readArchitecture(folder);
  const shapes = weightShapes(architecture);
  const baseShapes = weightShapes(base);
  if (architecture.family !== base.family || JSON.stringify([...shapes]) !== JSON.stringify([...baseShapes])) {
    throw refusal(folder, "has another architecture than the base model; start an endpoint of its own for it");
  }
  return readModelWeights(folder, shapes);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function refusal(folder: string, what: string, cause?: unknown): FulgurError {
  return new FulgurError("ERR_CHECKPOINT", `${folder} ${what}.`, { cause });
}
