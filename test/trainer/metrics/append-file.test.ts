import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { AppendFile } from "../../../trainer/metrics/append-file.ts";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-append-"));
});
afterEach(async () => {
  await rm(dir, { recursive: true });
});

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

it("goes on after what is there, in a folder that it makes", async () => {
  const path = join(dir, "a", "b", "file");
  for (const record of ["one,", "two,"]) {
    const file = new AppendFile(path);
    await file.open();
    await file.append(bytes(record));
    await file.close();
  }
  expect(await readFile(path, "utf8")).toBe("one,two,");
});

it("takes back what is not to be kept", async () => {
  const path = join(dir, "file");
  await writeFile(path, "one,two,to");
  const file = new AppendFile(path);
  await file.open(8);
  await file.append(bytes("three,"));
  await file.close();
  expect(await readFile(path, "utf8")).toBe("one,two,three,");
});

it("says what the disk says", async () => {
  await writeFile(join(dir, "file"), "no folder");
  await expect(new AppendFile(join(dir, "file", "in")).open()).rejects.toThrow(/ENOTDIR|EEXIST/);
  // Accepts everything and then has no room.
  const full = new AppendFile("/dev/full");
  await expect(full.append(bytes("x"))).rejects.toThrow("ENOSPC");
  await full.close();
});
