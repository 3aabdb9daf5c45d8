import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { makeBaseVersion } from "../../cli/base-version.ts";

let folder: string;
let model: string;
let policies: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "fulgur-base-"));
  model = join(folder, "model");
  policies = join(folder, "policies");
  await mkdir(model);
  await writeFile(join(model, "config.json"), "{}");
  await writeFile(join(model, "model.safetensors"), "weights");
});
afterEach(() => rm(folder, { recursive: true }));

const sha256 = (bytes: string | Uint8Array): string => createHash("sha256").update(bytes).digest("hex");

test("version 0 is the model's folder with a manifest of its files, and its sha256 is the manifest's", async () => {
  const { artifact, sha256: digest } = await makeBaseVersion({ policy: "flight", model, policies });
  expect(artifact).toBe(join(policies, "flight", "0"));
  const manifest = await readFile(join(artifact, "manifest.json"));
  expect(JSON.parse(manifest.toString())).toEqual({
    name: "flight@0",
    sha256: { "config.json": sha256("{}"), "model.safetensors": sha256("weights") },
  });
  expect(digest).toBe(sha256(manifest));
  expect(await readFile(join(artifact, "model.safetensors"), "utf8")).toBe("weights");
});

test("another tenant's policy of the same name has a folder and a name of its own", async () => {
  await makeBaseVersion({ policy: "flight", model, policies });
  const { artifact } = await makeBaseVersion({ tenant: "acme", policy: "flight", model, policies });
  expect(artifact).toBe(join(policies, "acme~flight", "0"));
  expect(JSON.parse(await readFile(join(artifact, "manifest.json"), "utf8"))).toMatchObject({ name: "acme~flight@0" });
});

test("it is made once: another model in the folder later does not change it", async () => {
  const first = await makeBaseVersion({ policy: "flight", model, policies });
  await writeFile(join(model, "model.safetensors"), "other weights");
  expect(await makeBaseVersion({ policy: "flight", model, policies })).toEqual(first);
  expect(await readFile(join(first.artifact, "model.safetensors"), "utf8")).toBe("weights");
});

test("a copy that was cut off, before or after its rename, is made again", async () => {
  await mkdir(join(policies, "flight", "0.part"), { recursive: true });
  await writeFile(join(policies, "flight", "0.part", "stray"), "");
  await mkdir(join(policies, "flight", "0"));
  await writeFile(join(policies, "flight", "0", "model.safetensors"), "wei");
  const { artifact } = await makeBaseVersion({ policy: "flight", model, policies });
  expect(await readFile(join(artifact, "model.safetensors"), "utf8")).toBe("weights");
  await expect(readFile(join(artifact, "stray"))).rejects.toThrow("ENOENT");
});

test("a folder that is no model is one sentence with what to do", async () => {
  await rm(join(model, "config.json"));
  await expect(makeBaseVersion({ policy: "flight", model, policies })).rejects.toMatchObject({
    code: "ERR_MODEL",
    message: `${model} is no Hugging Face model folder: it has no config.json; make the built-in model with npm run model`,
  });
});
