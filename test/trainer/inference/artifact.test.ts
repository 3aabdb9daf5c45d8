import { mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { FulgurError } from "../../../shared/errors.ts";
import { type ArtifactContext, artifactDigest, hashFile, readArtifact } from "../../../trainer/inference/artifact.ts";
import { readArchitecture } from "../../../trainer/model/architecture.ts";
import { writeTinyAdapter, writeTinyModel } from "./tiny-model.ts";

let root = "";
let modelDir = "";
let context: ArtifactContext;
let dir = "";
let made = 0;

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "fulgur-artifact-"));
  modelDir = join(root, "model");
  await writeTinyModel(modelDir);
  context = {
    name: "flight@3",
    architecture: await readArchitecture(modelDir),
    baseSha256: () => hashFile(join(modelDir, "model.safetensors")),
  };
});
afterAll(() => rm(root, { recursive: true }));
beforeEach(async () => {
  dir = join(root, `${made++}`);
  await writeTinyAdapter(dir, { name: "flight@3", modelDir });
});

test("a proven adapter names the layers that it changes, with PEFT's scale", async () => {
  const artifact = await readArtifact(dir, context);
  if (artifact.type !== "adapter") throw new Error("wanted an adapter");
  expect(artifact.lora.size).toBe(2 * 7);
  expect(artifact.lora.get("model.layers.1.mlp.down_proj")).toMatchObject({ scale: 2, a: { shape: [4, 48] } });
  expect(artifact.digest).toBe(await artifactDigest(dir));
});

test("rank-stabilised LoRA is scaled by the root of its rank", async () => {
  await edit("adapter_config.json", { use_rslora: true });
  await rm(join(dir, "manifest.json"));
  const artifact = await readArtifact(dir, context);
  expect(artifact.type === "adapter" && artifact.lora.get("model.layers.0.mlp.up_proj")?.scale).toBe(4);
});

test("full weights of the same shape are an artifact, of another shape not", async () => {
  const full = join(root, "full");
  await writeTinyModel(full, { seed: 4 });
  expect((await readArtifact(full, context)).type).toBe("weights");
  const other = join(root, "other");
  await writeTinyModel(other, { config: { num_hidden_layers: 3 } });
  await expect(readArtifact(other, context)).rejects.toThrow(/another architecture than the base model/);
});

describe("an artifact is refused in one sentence", () => {
  /** The sentence, if it was refused as a checkpoint. */
  const refusal = async (): Promise<string> => {
    try {
      await readArtifact(dir, context);
      return "accepted";
    } catch (error) {
      return error instanceof FulgurError && error.code === "ERR_CHECKPOINT"
        ? error.message
        : `failed: ${String(error)}`;
    }
  };

  test("when it is another version's", async () => {
    await expect(readArtifact(dir, { ...context, name: "flight@4" })).rejects.toThrow(/is "flight@3" by its manifest/);
  });

  test("when it was trained on another base", async () => {
    const other = { ...context, baseSha256: () => Promise.resolve("0".repeat(64)) };
    await expect(readArtifact(dir, other)).rejects.toThrow(
      /was trained on a base with sha256 .* but this endpoint serves 000/,
    );
  });

  test("when a file was changed", async () => {
    await edit("adapter_config.json", { lora_alpha: 9 });
    expect(await refusal()).toMatch(/is not what its manifest\.json says: adapter_config\.json/);
  });

  test("when a file is cut short and nothing promised otherwise", async () => {
    await rm(join(dir, "manifest.json"));
    await truncate(join(dir, "adapter_model.safetensors"), 4000);
    expect(await refusal()).toMatch(/cannot be used: .*cut short/);
  });

  test("when a file is missing", async () => {
    await rm(join(dir, "adapter_model.safetensors"));
    expect(await refusal()).toMatch(/lacks a readable adapter_model\.safetensors/);
  });

  test("when its manifest is no manifest", async () => {
    await writeFile(join(dir, "manifest.json"), "{");
    expect(await refusal()).toMatch(/has a manifest\.json that is not/);
  });

  test.each([
    [{ use_dora: true }, /uses use_dora/],
    [{ bias: "all" }, /uses bias "all"/],
    [{ modules_to_save: ["lm_head"] }, /uses modules_to_save/],
    [{ r: 5 }, /does not fit the base model at "model\.layers\.0/],
    [{ peft_type: "IA3" }, /is no LoRA config/],
  ])("when its config says %j", async (change, message) => {
    await rm(join(dir, "manifest.json"));
    await edit("adapter_config.json", change);
    expect(await refusal()).toMatch(message);
  });

  test("when there is nothing", async () => {
    await expect(readArtifact(join(root, "nowhere"), context)).rejects.toThrow(/cannot be read/);
    await expect(readArtifact(root, context)).rejects.toThrow(
      /has neither adapter_config\.json nor model\.safetensors/,
    );
  });
});

async function edit(file: string, change: Record<string, unknown>): Promise<void> {
  const path = join(dir, file);
  const value: unknown = JSON.parse(await readFile(path, "utf8"));
  await writeFile(path, JSON.stringify(Object.assign({}, value, change)));
}
