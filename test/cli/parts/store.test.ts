import { mkdtemp, rm, writeFile, mkdir } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { connectStore, storeClient } from "#shared/store/connect.ts";
import { readTenant } from "#shared/store/tenants.ts";
import { ensureKeys, type StoreKeys } from "../../../cli/keys.ts";
import { findSqld, startStore, type RunningStore } from "../../../cli/parts/store.ts";
import { freePort } from "../../support/store.ts";

describe("startStore", () => {
  let folder: string;
  let keys: StoreKeys;
  const running: RunningStore[] = [];
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "fulgur-store-part-"));
    keys = (await ensureKeys(join(folder, "keys"))).store;
  });
  afterEach(async () => {
    for (const store of running.splice(0)) await store.stop();
    await rm(folder, { recursive: true, force: true });
  });

  async function start(port: number): Promise<RunningStore> {
    const store = await startStore({
      dir: join(folder, "store"),
      port,
      keys,
      logPath: join(folder, "logs", "store.log"),
    });
    running.push(store);
    return store;
  }

  it("brings up an empty database with the schema and the default tenant, and comes back to it", async () => {
    const port = await freePort();
    const first = await start(port);
    expect(first.url).toBe(`http://127.0.0.1:${port}`);
    await first.probe();
    await first.stop();
    await expect(first.probe()).rejects.toMatchObject({ code: "ERR_STORE" });
    const again = await start(port);
    const db = connectStore({ url: again.url, token: keys.readToken });
    expect(await readTenant(db, "default")).toMatchObject({ id: "default" });
    const { rows } = await storeClient({ url: again.url, token: keys.readToken }).execute("select id from probes");
    expect(rows.map((row) => row["id"])).toEqual([1]);
  });

  it("takes no write with the reading token, and nothing without a token or with a forged one", async () => {
    const { url } = await start(await freePort());
    const write = "insert into probes (id, touched_at) values (7, 7)";
    await expect(storeClient({ url, token: keys.readToken }).execute(write)).rejects.toThrow(/403/);
    await expect(storeClient({ url, token: "" }).execute("select 1")).rejects.toThrow(/401/);
    const foreign = await ensureKeys(join(folder, "foreign"));
    await expect(storeClient({ url, token: foreign.store.writeToken }).execute("select 1")).rejects.toThrow(/401/);
    await storeClient({ url, token: keys.writeToken }).execute(write);
  });

  it("rejects its probe when the server hangs", { timeout: 20_000 }, async () => {
    const store = await start(await freePort());
    process.kill(store.pid, "SIGSTOP");
    try {
      await expect(store.probe()).rejects.toMatchObject({ code: "ERR_STORE" });
    } finally {
      process.kill(store.pid, "SIGCONT");
    }
    await store.probe();
  });

  it("names a taken port and starts nothing", async () => {
    const holder = createServer();
    const port = await new Promise<number>((resolve) => {
      holder.listen({ host: "127.0.0.1", port: 0 }, () => {
        const address = holder.address();
        resolve(typeof address === "object" && address !== null ? address.port : 0);
      });
    });
    try {
      await expect(start(port)).rejects.toMatchObject({
        code: "ERR_PORT_TAKEN",
        message: expect.stringContaining(String(port)),
      });
    } finally {
      holder.close();
    }
  });

  it("says in one sentence that the folder cannot be used, or holds something else", async () => {
    await writeFile(join(folder, "store"), "a file, not a folder");
    await expect(start(await freePort())).rejects.toMatchObject({ code: "ERR_DISK" });
    await rm(join(folder, "store"));
    const data = join(folder, "store", "data.sqld", "dbs", "default");
    await mkdir(data, { recursive: true });
    await writeFile(join(data, "data"), "this is not a database ".repeat(500));
    await expect(start(await freePort())).rejects.toMatchObject({
      code: "ERR_STORE",
      message: expect.stringContaining("damaged"),
    });
  });
});

describe("findSqld", () => {
  it("names the platform and what to do where there is no server for it", () => {
    expect(() => findSqld("win32", "x64")).toThrow(/win32-x64.*WSL/);
    expect(() => findSqld("darwin", "arm64")).toThrow(
      process.platform === "darwin" ? /never/ : /darwin-arm64 is not installed.*npm install/,
    );
  });
});
