import { createHash } from "node:crypto";
import { copyFile, mkdir, open, readFile, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import { DEFAULT_TENANT, qualified, servedName } from "#shared/words.ts";

export interface BaseVersion {
  readonly artifact: string;
  /** Of the manifest's bytes: what the store keeps for the version. */
  readonly sha256: string;
}

/**
 * Version 0 of a policy: the base model's folder copied under the state, with a manifest of its files' hashes. Made
 * once, aside and renamed; a later change of the model's folder does not reach a state that was made with another one.
 * @throws FulgurError ERR_MODEL when the model's folder has no config.json, ERR_DISK when it cannot be copied
 */
export async function makeBaseVersion(options: {
  /** Whose policy it is; the local installation's where absent. */
  readonly tenant?: string;
  readonly policy: string;
  readonly model: string;
  readonly policies: string;
}): Promise<BaseVersion> {
  const { tenant = DEFAULT_TENANT, policy, model, policies } = options;
  const artifact = join(policies, qualified(tenant, policy), "0");
  const there = await readFile(join(artifact, "manifest.json")).catch(() => undefined);
  if (there !== undefined) return { artifact, sha256: sha256(there) };

  const files = await readdir(model, { withFileTypes: true }).catch(() => []);
  const names = files.filter((file) => file.isFile()).map((file) => file.name);
  if (!names.includes("config.json")) {
    throw new FulgurError(
      "ERR_MODEL",
      `${model} is no Hugging Face model folder: it has no config.json; make the built-in model with npm run model`,
    );
  }
  const aside = `${artifact}.part`;
  try {
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true });
    const hashes: Record<string, string> = {};
    for (const name of names.toSorted()) {
      await copyFile(join(model, name), join(aside, name));
      hashes[name] = sha256(await readFile(join(aside, name)));
    }
    const manifest = Buffer.from(
      `${JSON.stringify({ name: servedName(tenant, policy, 0), sha256: hashes }, null, 2)}\n`,
    );
    const file = await open(join(aside, "manifest.json"), "w");
    await file.writeFile(manifest);
    await file.sync();
    await file.close();
    await rm(artifact, { recursive: true, force: true }); // without a manifest it is a torn copy
    await rename(aside, artifact);
    return { artifact, sha256: sha256(manifest) };
  } catch (cause) {
    throw new FulgurError(
      "ERR_DISK",
      `the base model could not be copied to ${artifact}; check that the disk is not full and the folder is writable`,
      { cause },
    );
  }
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
