import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Engine } from "../../../trainer/engine/contract.ts";
import { baseWeightsSha256, exportVersion, lastVersionOnDisk } from "../../../trainer/release/artifact.ts";

let versions: string;
let exports: string[];
beforeEach(async () => {
  versions = await mkdtemp(join(tmpdir(), "fulgur-artifact-"));
  exports = [];
});
afterEach(() => rm(versions, { recursive: true, force: true }));

type Exporter = Pick<Engine, "info" | "exportAdapter" | "exportWeights">;
function exporter(method: "lora" | "full"): Exporter {
  const write = (file: string) => async (dir: string) => {
    exports.push(file);
    await mkdir(dir, { recursive: true });
    await writeFile(join(dir, file), "weights");
  };
  const info = { name: "toy", precision: "fp32", method, parameters: { total: 1, trained: 1 } };
  // Of the architecture nothing is asked here.
  return {
    info: info as Engine["info"],
    exportAdapter: write("adapter_model.safetensors"),
    exportWeights: write("model.safetensors"),
  };
}

const options = (version: number) => ({
  name: `flight@${version}`,
  version,
  batchId: `ba_${version}`,
  versions,
  baseSha256: "ab".repeat(32),
});

describe("exportVersion", () => {
  it("writes an adapter whose manifest names the version, its files and its base", async () => {
    const { folder, kind, sha256 } = await exportVersion(exporter("lora"), options(13));
    expect({ folder, kind }).toEqual({ folder: join(versions, "13"), kind: "adapter" });
    expect(sha256).toMatch(/^[0-9a-f]{64}$/);
    expect(JSON.parse(await readFile(join(folder, "manifest.json"), "utf8"))).toEqual({
      name: "flight@13",
      batch_id: "ba_13",
      base_sha256: "ab".repeat(32),
      sha256: { "adapter_model.safetensors": "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c" },
    });
  });

  it("keeps what is there: a version is written once", async () => {
    const first = await exportVersion(exporter("full"), options(2));
    expect(first.kind).toBe("weights");
    expect(await exportVersion(exporter("full"), options(2))).toEqual(first);
    expect(exports).toEqual(["model.safetensors"]);
  });

  it("refuses a folder of that number that is altered, of another tenant or of another batch", async () => {
    const { folder } = await exportVersion(exporter("lora"), options(3));
    await expect(exportVersion(exporter("lora"), { ...options(3), name: "acme~flight@3" })).rejects.toThrow(
      "holds flight@3 of batch ba_3, and acme~flight@3 of batch ba_3 belongs there",
    );
    await expect(exportVersion(exporter("lora"), { ...options(3), batchId: "ba_other" })).rejects.toThrow(
      "and flight@3 of batch ba_other belongs there; start again: the run resumes under a number that is free",
    );
    await writeFile(join(folder, "adapter_model.safetensors"), "other");
    await expect(exportVersion(exporter("lora"), options(3))).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  });
});

describe("lastVersionOnDisk", () => {
  it("is the highest number that has a folder", async () => {
    expect(await lastVersionOnDisk(join(versions, "none"))).toBe(0);
    for (const name of ["2", "10", "11.writing", "notes"]) await mkdir(join(versions, name));
    expect(await lastVersionOnDisk(versions)).toBe(10);
  });
});

describe("baseWeightsSha256", () => {
  it("is the one of the weights' file in the base's manifest, where there is one", async () => {
    expect(await baseWeightsSha256(versions)).toBeUndefined();
    const sha256 = { "model.safetensors": "cd".repeat(32), "config.json": "ef".repeat(32) };
    await writeFile(join(versions, "manifest.json"), JSON.stringify({ name: "flight@0", base_sha256: null, sha256 }));
    expect(await baseWeightsSha256(versions)).toBe("cd".repeat(32));
  });
});
