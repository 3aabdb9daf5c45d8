import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { PolicyRecord, VersionRecord } from "../../../trainer/records.ts";
import { weightsOf } from "../../../trainer/release/version-weights.ts";
import { writeWholeFolder } from "../../../trainer/release/whole-folder.ts";

let dir: string;
let adapter: VersionRecord;
let weights: VersionRecord;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-weights-"));
  const fill = async (aside: string): Promise<void> => {
    await writeFile(join(aside, "adapter_config.json"), JSON.stringify({ r: 8, lora_alpha: 16, bias: "none" }));
  };
  const write = async (version: number, kind: "adapter" | "weights"): Promise<VersionRecord> => {
    const artifact = join(dir, String(version));
    const { sha256 } = await writeWholeFolder(artifact, fill, { name: `p@${version}` });
    return { version, kind, artifact, sha256 };
  };
  adapter = await write(3, "adapter");
  weights = await write(4, "weights");
});
afterEach(() => rm(dir, { recursive: true, force: true }));

const config = { policy: "p", method: "lora", loraRank: 8, loraAlpha: 16 } as const;

function policy(): PolicyRecord {
  const base: VersionRecord = { version: 0, kind: "base", artifact: "/base", sha256: "b" };
  return { routeVersion: 3, baseArtifact: "/base", versions: [base, adapter, weights] };
}

describe("weightsOf", () => {
  it("is the base, the base with an adapter, or a model of its own", async () => {
    expect(await weightsOf(policy(), 0, config)).toEqual({ modelDir: "/base" });
    expect(await weightsOf(policy(), 3, config)).toEqual({ modelDir: "/base", adapterDir: join(dir, "3") });
    expect(await weightsOf(policy(), 4, { ...config, method: "full" })).toEqual({ modelDir: join(dir, "4") });
  });

  it.each([
    [4, {}, "p@4 was trained with --method full, and --method lora cannot go on from it"],
    [3, { method: "full" }, "p@3 was trained with --method lora, and --method full cannot go on from it"],
    [3, { loraRank: 16, loraAlpha: 32 }, "give --lora-rank 8 --lora-alpha 16"],
    [3, { loraAlpha: 32 }, "p@3 is an adapter of rank 8 and alpha 16, and rank 8 and alpha 32 were asked for"],
  ] as const)("refuses version %i with %j, and says what to give", async (version, given, message) => {
    await expect(weightsOf(policy(), version, { ...config, ...given })).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining(message),
    });
  });

  it("refuses a folder that is gone, altered, or not what was registered", async () => {
    const refuses = (message: string) =>
      expect(weightsOf(policy(), 3, config)).rejects.toMatchObject({
        code: "ERR_CHECKPOINT",
        message: expect.stringContaining(message),
      });
    const { sha256 } = adapter;
    adapter = { ...adapter, sha256: weights.sha256 };
    await refuses("is not what was registered, and training was to go on from p@3");
    adapter = { ...adapter, sha256 };
    await writeFile(join(dir, "3", "adapter_config.json"), "{}");
    await refuses("torn or was altered");
    await rm(join(dir, "3"), { recursive: true });
    await refuses("is gone, and training was to go on from p@3");
    await expect(weightsOf(policy(), 9, config)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  });
});
