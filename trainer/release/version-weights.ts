import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { versionName } from "#shared/words.ts";
import type { EngineStart, TrainerConfig } from "../config.ts";
import type { PolicyRecord } from "../records.ts";
import { proveWholeFolder } from "./whole-folder.ts";

/**
 * Where training finds the weights of a version of its policy: the base, an adapter on it, or a model of its own. The
 * folder is proven against what the store holds of it.
 * @throws FulgurError ERR_CHECKPOINT when the folder is gone, altered or another version's, ERR_CONFIG when the version was
 * made by another method, or by an adapter of another size
 */
export async function weightsOf(
  policy: PolicyRecord,
  version: number,
  config: Pick<TrainerConfig, "policy" | "method" | "loraRank" | "loraAlpha">,
): Promise<EngineStart> {
  const modelDir = policy.baseArtifact;
  if (version === 0) return { modelDir };
  const name = versionName(config.policy, version);
  const record = policy.versions.find((each) => each.version === version);
  if (record === undefined) {
    throw new FulgurError("ERR_CHECKPOINT", `${name} is not registered; route a version that is`);
  }
  const proven = await proveWholeFolder(record.artifact);
  if (proven?.sha256 !== record.sha256) {
    throw new FulgurError(
      "ERR_CHECKPOINT",
      `${record.artifact} is ${proven === undefined ? "gone" : "not what was registered"}, and training was to go on from ${name}; restore it, or route another version`,
    );
  }
  if (record.kind === "weights" && config.method === "full") return { modelDir: record.artifact };
  if (record.kind !== "adapter" || config.method !== "lora") {
    throw new FulgurError(
      "ERR_CONFIG",
      `${name} was trained with --method ${record.kind === "adapter" ? "lora" : "full"}, and --method ${config.method} cannot go on from it`,
    );
  }
  await checkSize(record.artifact, name, config);
  return { modelDir, adapterDir: record.artifact };
}

const adapterSchema = z.looseObject({ r: z.int(), lora_alpha: z.number() });

/** Another alpha would scale the same weights to another policy without a word. */
async function checkSize(
  folder: string,
  name: string,
  { loraRank, loraAlpha }: Pick<TrainerConfig, "loraRank" | "loraAlpha">,
): Promise<void> {
  const text = await readFile(join(folder, "adapter_config.json"), "utf8");
  const { r, lora_alpha: alpha } = adapterSchema.parse(JSON.parse(text));
  if (r === loraRank && alpha === loraAlpha) return;
  throw new FulgurError(
    "ERR_CONFIG",
    `${name} is an adapter of rank ${r} and alpha ${alpha}, and rank ${loraRank} and alpha ${loraAlpha} were asked for; give --lora-rank ${r} --lora-alpha ${alpha}`,
  );
}
