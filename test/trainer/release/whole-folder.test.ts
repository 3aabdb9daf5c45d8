import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { proveWholeFolder, writeWholeFolder } from "../../../trainer/release/whole-folder.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "fulgur-whole-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const fill = async (aside: string): Promise<void> => {
  await mkdir(join(aside, "inner"));
  await writeFile(join(aside, "a.txt"), "a");
  await writeFile(join(aside, "inner", "b.txt"), "b");
};

describe("writeWholeFolder", () => {
  it("lists every file with its sha256, and proves it", async () => {
    const dir = join(root, "deep", "thing");
    const { sha256 } = await writeWholeFolder(dir, fill, { name: "thing@1", step: 7 });
    expect(JSON.parse(await readFile(join(dir, "manifest.json"), "utf8"))).toEqual({
      name: "thing@1",
      step: 7,
      sha256: {
        "a.txt": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "inner/b.txt": "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
      },
    });
    expect(await proveWholeFolder(dir)).toMatchObject({ sha256, manifest: { name: "thing@1" } });
    expect(await readdir(join(root, "deep"))).toEqual(["thing"]);
  });

  it("leaves nothing under the name when filling fails, and clears what a crash left aside", async () => {
    const dir = join(root, "thing");
    await mkdir(`${dir}.writing`, { recursive: true });
    await writeFile(join(`${dir}.writing`, "left"), "half");
    const failing = writeWholeFolder(dir, () => Promise.reject(new Error("engine broke")), { name: "x" });
    await expect(failing).rejects.toThrow("engine broke");
    expect(await readdir(root)).toEqual([]);
    expect(await proveWholeFolder(dir)).toBeUndefined();
  });

  it("tells a failing disk in one sentence", async () => {
    await writeFile(join(root, "file"), "in the way");
    await expect(writeWholeFolder(join(root, "file", "thing"), fill, { name: "x" })).rejects.toMatchObject({
      code: "ERR_DISK",
      message: expect.stringContaining("free some space or check its owner"),
    });
  });
});

describe("proveWholeFolder", () => {
  it.each([
    ["altered", async (dir: string) => writeFile(join(dir, "inner/b.txt"), "B"), "inner/b.txt has sha256 df7e70e50215"],
    ["cut short", async (dir: string) => writeFile(join(dir, "a.txt"), ""), "a.txt has sha256"],
    ["missing a file", async (dir: string) => rm(join(dir, "a.txt")), "a.txt cannot be read"],
    [
      "without its manifest",
      async (dir: string) => rm(join(dir, "manifest.json")),
      "manifest.json is missing, unreadable or altered",
    ],
  ])("refuses a folder that is %s", async (_, damage, sentence) => {
    const dir = join(root, "thing");
    await writeWholeFolder(dir, fill, { name: "thing@1" });
    await damage(dir);
    await expect(proveWholeFolder(dir)).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining(sentence),
    });
  });
});
