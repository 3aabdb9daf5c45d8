import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createPolicy } from "#shared/store/policies.ts";
import { putTenant } from "#shared/store/tenants.ts";
import { homesOf, requireEveryShard, shardsOf, storeDir } from "../../cli/shards.ts";
import { ROOT } from "../../cli/root.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

const run = promisify(execFile);

let stores: TestStore[];
beforeAll(async () => {
  stores = [await startTestStore(), await startTestStore()];
}, 30_000);
afterAll(() => Promise.all(stores.map((store) => store.stop())));

const places = (): { url: string; token: string }[] => stores.map(({ url, keys }) => ({ url, token: keys.readToken }));

async function addPolicy(shard: number, tenantId: string): Promise<void> {
  const version = { tenantId, kind: "base", artifact: "a", sha256: "0".repeat(64) } as const;
  await stores[shard]?.writer.transact(createPolicy({ ...version, name: "p" }, 1).statements);
}

describe("homesOf", () => {
  it("tells who lives elsewhere than the name says, so that nobody moves, and refuses who lives twice", async () => {
    expect(await homesOf(places())).toEqual({});
    // Of two shards, `default` and `acme` are of the second by name, `globex` of the first.
    await addPolicy(0, "default");
    await addPolicy(0, "globex");
    await addPolicy(1, "acme");
    await stores[0]?.writer.transact(
      putTenant({ id: "t2", name: "only settings", settings: { fail_open: false }, createdAt: 1 }),
    );
    expect(await homesOf(places())).toEqual({ default: 0, t2: 0 });
    await addPolicy(0, "acme");
    await expect(homesOf(places())).rejects.toThrow("tenant acme has something in shard 0 and in shard 1");
  });
});

describe("a local installation's shards", () => {
  it("are as many as it was given, and never fewer", async () => {
    const folder = await mkdtemp(join(tmpdir(), "fulgur-shards-"));
    try {
      const state = { store: join(folder, "store") };
      expect(await shardsOf({ store: join(folder, "nowhere", "store") })).toBe(1);
      expect(await shardsOf(state)).toBe(1);
      for (const shard of [0, 1, 2]) await mkdir(storeDir(state, shard));
      expect(storeDir(state, 0)).toBe(state.store);
      expect(await shardsOf(state)).toBe(3);
      await expect(requireEveryShard(state, 3)).resolves.toBeUndefined();
      await expect(requireEveryShard(state, 4)).resolves.toBeUndefined();
      await expect(requireEveryShard(state, 2)).rejects.toThrow("has 3 shards and is to be started with 2");
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});

describe("fulgur shards", () => {
  const cli = async (args: readonly string[], env: Readonly<Record<string, string>>): Promise<string> =>
    (await run(process.execPath, [join(ROOT, "cli/main.ts"), "shards", ...args], { env: { ...process.env, ...env } }))
      .stdout;

  it("where prints the database of a tenant", async () => {
    const env = { STORE_URL: "https://a.example", STORE_SHARDS: "https://a.example, https://b.example" };
    expect(await cli(["where", "default"], env)).toBe("https://b.example\n");
    expect(await cli(["where", "default"], { ...env, STORE_HOMES: '{"default":0}' })).toBe("https://a.example\n");
    expect(await cli(["where", "default"], { STORE_URL: "https://a.example" })).toBe("https://a.example\n");
    const other = { STORE_URL: "https://c.example", STORE_SHARDS: env.STORE_SHARDS };
    await expect(cli(["where", "default"], other)).rejects.toMatchObject({
      stderr: expect.stringContaining("the first of them being STORE_URL") as string,
    });
  });

  it("prepare brings every shard's schema up to date and prints the homes", async () => {
    const { url = "", keys } = stores[1] ?? {};
    const env = { STORE_URL: url, STORE_SHARDS: url, STORE_WRITE_TOKEN: keys?.writeToken ?? "" };
    expect(await cli(["prepare"], env)).toBe("{}\n");
    await expect(cli(["prepare"], { ...env, STORE_WRITE_TOKEN: "" })).rejects.toMatchObject({
      stderr: expect.stringContaining("STORE_WRITE_TOKEN") as string,
    });
  });
});
