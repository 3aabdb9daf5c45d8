import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FulgurError } from "../../../shared/errors.ts";
import { Versions } from "../../../trainer/inference/versions.ts";

let dir = "";
/** Digest by folder; what is not listed cannot be loaded. */
let artifacts: Map<string, string>;
let log: string[];
let now = 0;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-versions-"));
  artifacts = new Map();
  log = [];
  for (const n of [1, 2, 3, 4]) {
    const folder = join(dir, "flight", `${n}`);
    await mkdir(folder, { recursive: true });
    artifacts.set(folder, `digest ${n}`);
  }
});
afterEach(() => rm(dir, { recursive: true }));

test("a version is loaded once for requests that come together, and used by name afterwards", async () => {
  const versions = await make();
  const leases = await Promise.all([versions.acquire("flight@1"), versions.acquire("flight@1")]);
  expect(leases.map(({ name }) => name)).toEqual(["flight@1", "flight@1"]);
  expect(log).toEqual(["load base", "load flight@1"]);
  expect(versions.running().get("flight@1")).toBe(2);
});

test("idle versions beyond the bound give way, the one used least recently first; the base stays", async () => {
  const versions = await make(2);
  const held = await versions.acquire("flight@1");
  for (const n of [2, 3]) (await versions.acquire(`flight@${n}`)).release();
  await expect.poll(() => names(versions)).toEqual(["base", "flight@1", "flight@3"]);
  held.release();
  (await versions.acquire("flight@4")).release();
  await expect.poll(() => names(versions)).toEqual(["base", "flight@1", "flight@4"]);
  expect(log).toContain("unload flight@2");
});

test("unloading waits for the last request, and a later request loads it again", async () => {
  const versions = await make();
  const lease = await versions.acquire("flight@1");
  const unloaded = versions.unload("flight@1");
  const later = versions.acquire("flight@1");
  await Promise.resolve();
  expect(log).not.toContain("unload flight@1");
  lease.release();
  await unloaded;
  (await later).release();
  expect(log).toEqual(["load base", "load flight@1", "unload flight@1", "load flight@1"]);
  expect(names(versions)).toEqual(["base", "flight@1"]);
});

test("releasing twice counts once", async () => {
  const versions = await make();
  const first = await versions.acquire("flight@1");
  await versions.acquire("flight@1");
  first.release();
  first.release();
  expect(versions.running().get("flight@1")).toBe(1);
});

test("a name whose folder holds another artifact later is refused, loaded or not", async () => {
  const versions = await make();
  await versions.load("flight@1", "flight/1");
  artifacts.set(join(dir, "flight", "1"), "digest of something else");
  await expect(versions.load("flight@1", "flight/1")).rejects.toThrow(/never reused/);
  await versions.unload("flight@1");
  await expect(versions.acquire("flight@1")).rejects.toThrow(/never reused/);
  expect(names(versions)).toEqual(["base"]);
  artifacts.set(join(dir, "flight", "1"), "digest 1");
  (await versions.acquire("flight@1")).release();
});

test("a failed load leaves nothing behind and is tried again", async () => {
  const versions = await make();
  artifacts.delete(join(dir, "flight", "2"));
  await expect(versions.acquire("flight@2")).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  expect(names(versions)).toEqual(["base"]);
  artifacts.set(join(dir, "flight", "2"), "digest 2");
  (await versions.acquire("flight@2")).release();
});

test("a version whose folder was removed answers while it is loaded, and is said to be gone when it would be loaded", async () => {
  const versions = await make();
  (await versions.acquire("flight@1")).release();
  await rm(join(dir, "flight", "1"), { recursive: true });
  (await versions.acquire("flight@1")).release();
  await versions.unload("flight@1");
  await expect(versions.acquire("flight@1")).rejects.toMatchObject({
    code: "ERR_NOT_FOUND",
    message: expect.stringMatching(
      /^The model "flight@1" was here and its folder \S+ is gone: .*Ask for another version/,
    ),
  });
  (await versions.acquire("flight@2")).release();
  expect(names(versions)).toEqual(["base", "flight@2"]);
});

test.each(["acme~flight@1", "~002e.~flight@1"])(
  "a tenant's version %s is in a folder of its tenant's",
  async (name) => {
    const folder = join(dir, name.replace("@1", ""), "1");
    await mkdir(folder, { recursive: true });
    artifacts.set(folder, "theirs");
    const versions = await make();
    const lease = await versions.acquire(name);
    expect(versions.list().at(-1)).toMatchObject({ name, path: folder });
    lease.release();
  },
);

test.each([
  ...["nobody", "nobody@1", "flight@9", "../flight@1", "flight@1/..", "flight@x", ".@1", "..~/flight@1", "~/@1"],
  "acme~flight@1",
])("%s is not found", async (name) => {
  const versions = await make();
  await expect(versions.acquire(name)).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
});

test("neither the base nor an unknown version can be unloaded", async () => {
  const versions = await make();
  await expect(versions.unload("base")).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
  await expect(versions.unload("flight@1")).rejects.toMatchObject({ code: "ERR_NOT_FOUND" });
});

async function make(maxVersions = 3): Promise<Versions> {
  const digestOf = (path: string | null): string => {
    const digest = path === null ? "" : artifacts.get(path);
    if (digest === undefined) throw new FulgurError("ERR_CHECKPOINT", `${path ?? ""} cannot be read.`);
    return digest;
  };
  const versions = new Versions(
    {
      load: async (name, path) => {
        await Promise.resolve();
        const digest = digestOf(path);
        log.push(`load ${name}`);
        return digest;
      },
      unload: async (name) => {
        await Promise.resolve();
        log.push(`unload ${name}`);
      },
      digest: async (path) => digestOf(path),
    },
    { baseName: "base", adapterDir: dir, maxVersions, nowMs: () => now++ },
  );
  await versions.load("base", null);
  return versions;
}

function names(versions: Versions): string[] {
  return versions.list().map(({ name }) => name);
}
