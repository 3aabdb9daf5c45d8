import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { sql } from "drizzle-orm";
import { afterEach, describe, expect, it } from "vitest";
import { readCalls } from "#shared/store/calls.ts";
import { connectStore } from "#shared/store/connect.ts";
import { recordMetrics, readMetrics } from "#shared/store/runs.ts";
import type { Statement, StoreWriter } from "#shared/store/statement.ts";
import { readUsage } from "#shared/store/usage.ts";
import { storeContract } from "../../contract/store.ts";
import { startTestStore, type TestStore } from "../../support/store.ts";
import { startTestWriter, type TestWriter } from "../../support/writer.ts";

storeContract("the writer's Durable Object", async () => {
  const store = await startTestStore();
  const { writer, stop } = await startTestWriter({ storeUrl: store.url, storeToken: store.keys.writeToken });
  const close = async (): Promise<void> => {
    await stop();
    await store.stop();
  };
  return { db: connectStore({ url: store.url, token: store.keys.readToken }), writer, close };
});

describe("Writer", () => {
  const cleanups: (() => Promise<unknown>)[] = [];
  afterEach(async () => {
    for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
  });

  async function start(): Promise<{ store: TestStore; host: TestWriter; restartHost: () => Promise<TestWriter> }> {
    const store = await startTestStore();
    cleanups.push(() => store.stop());
    const persistDir = await mkdtemp(join(tmpdir(), "fulgur-writer-"));
    cleanups.push(() => rm(persistDir, { recursive: true, force: true }));
    const startHost = async (): Promise<TestWriter> => {
      const host = await startTestWriter({ storeUrl: store.url, storeToken: store.keys.writeToken, persistDir });
      cleanups.push(() => host.stop());
      return host;
    };
    return { store, host: await startHost(), restartHost: startHost };
  }

  const point = (step: number, value: number): Statement[] =>
    recordMetrics([{ runId: "run", tenantId: "default", step, name: "n", value, createdAt: 1 }]);
  const kept = async (store: TestStore): Promise<[number, number][]> =>
    (await readMetrics(store.db, "default", "run")).map(({ step, value }) => [step, value]);
  const refusedByStore: Statement[] = [{ sql: "insert into tasks (id) values ('x')", args: [] }];

  it("fails only the unit that libSQL refuses, whatever it shares a commit with", async () => {
    const { store, host } = await start();
    const outcomes = await Promise.allSettled([
      host.writer.append([point(0, 1)]),
      host.writer.append([point(1, 1), [...point(2, 1), ...refusedByStore], point(3, 1)]),
      host.writer.transact(refusedByStore),
      host.writer.append([point(4, 1)]),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "rejected", "fulfilled"]);
    expect(outcomes[1]).toMatchObject({ reason: { code: "ERR_CONFLICT" } });
    expect((await kept(store)).map(([step]) => step)).toEqual([0, 1, 3, 4]);
  });

  it("keeps appends while libSQL is away, refuses transactions, and writes all in order when it is back", async () => {
    const { store, host } = await start();
    await host.writer.append([point(0, 1)]);
    expect(await host.writer.status()).toEqual({ storeUp: true, outbox: 0 });
    await store.kill();
    for (let value = 2; value <= 9; value++) await host.writer.append([point(0, value)]);
    // What libSQL will refuse is acknowledged now; it may not hold up what comes after.
    await host.writer.append([refusedByStore, point(1, 1)]);
    expect(await host.writer.status()).toEqual({ storeUp: false, outbox: 10 });
    await expect(host.writer.transact([{ sql: "select 1", args: [] }])).rejects.toMatchObject({ code: "ERR_STORE" });
    await store.restart();
    await drained(host.writer);
    expect(await kept(store)).toEqual([
      [0, 9],
      [1, 1],
    ]);
    expect(await host.writer.transact([{ sql: "select 1 as one", args: [] }])).toEqual([[{ one: 1 }]]);
  });

  it("says that libSQL is away before anything was written to it", async () => {
    const { store, host } = await start();
    await store.kill();
    expect(await host.writer.status()).toEqual({ storeUp: false, outbox: 0 });
    await store.restart();
    expect(await host.writer.status()).toEqual({ storeUp: true, outbox: 0 });
  });

  it("does not wait for ever for a server that hangs", { timeout: 40_000 }, async () => {
    const { store, host } = await start();
    await host.writer.append([point(0, 1)]);
    process.kill(store.pid, "SIGSTOP");
    try {
      await host.writer.append([point(0, 2)]);
      expect(await host.writer.status()).toEqual({ storeUp: false, outbox: 1 });
    } finally {
      process.kill(store.pid, "SIGCONT");
    }
    await drained(host.writer);
    expect(await kept(store)).toEqual([[0, 2]]);
  });

  it(
    "loses no acknowledged record when libSQL is killed under load, again and again",
    { timeout: 60_000 },
    async () => {
      const { store, host } = await start();
      const load = recording(host.url, 16);
      for (let round = 1; round <= 3; round++) {
        await load.until(round * 250);
        await store.kill();
        await load.until(round * 250 + 100);
        await store.restart();
      }
      const acknowledged = await load.stop();
      await drained(host.writer);
      const rows = await readCalls(store.db, "default", ["ro_load"]);
      const stored = new Set(rows.map(({ id }) => id));
      expect(acknowledged.length).toBeGreaterThan(850);
      expect(acknowledged.filter((id) => !stored.has(id))).toEqual([]);
      const [usage] = await readUsage(store.db, "default");
      expect(usage?.calls, "each record is counted once, however often it was written").toBe(rows.length);
    },
  );

  it("comes back to libSQL although appends never pause", { timeout: 60_000 }, async () => {
    const { store, host } = await start();
    // More at once than one group of the drain has: the outbox takes them faster than libSQL.
    const load = recording(host.url, 96);
    await load.until(50);
    await store.kill();
    await load.until(1500);
    await store.restart();
    await drained(host.writer);
    const acknowledged = await load.stop();
    const rows = await store.db.all<{ id: string }>(sql`select id from calls`);
    const stored = new Set(rows.map(({ id }) => id));
    expect(acknowledged.filter((id) => !stored.has(id))).toEqual([]);
    expect(await host.writer.status()).toEqual({ storeUp: true, outbox: 0 });
  });

  it("keeps its outbox through a SIGKILL of workerd", { timeout: 60_000 }, async () => {
    const { store, host, restartHost } = await start();
    if (host.workerdPid === undefined) return;
    const load = recording(host.url, 8);
    await load.until(50);
    await store.kill();
    await load.until(400);
    process.kill(host.workerdPid, "SIGKILL");
    const acknowledged = await load.stop();
    await host.stop();
    await store.restart();
    const next = await restartHost();
    await drained(next.writer);
    const stored = new Set((await readCalls(store.db, "default", ["ro_load"])).map(({ id }) => id));
    expect(acknowledged.length).toBeGreaterThanOrEqual(400);
    expect(acknowledged.filter((id) => !stored.has(id))).toEqual([]);
  });
});

/** Until the writer talks to libSQL again; the test's own limit ends it otherwise. */
async function drained(writer: StoreWriter): Promise<void> {
  while (!(await writer.status()).storeUp) await pause(10);
}

interface Load {
  /** Resolves once so many records were acknowledged. */
  until(count: number): Promise<void>;
  /** The ids of all records that were acknowledged. */
  stop(): Promise<string[]>;
}

/** Loops that record one call after the other; a request that fails was not acknowledged. */
function recording(url: string, loops: number): Load {
  const acknowledged: string[] = [];
  const state = { isGoing: true, failures: 0 };
  const record = async (): Promise<void> => {
    try {
      const response = await fetch(`${url}/record?rollout=ro_load`);
      const { id } = (await response.json()) as { id?: string };
      if (response.ok && id !== undefined) acknowledged.push(id);
    } catch {
      state.failures += 1;
    }
  };
  const running = Array.from({ length: loops }, async () => {
    while (state.isGoing && state.failures < 100) await record();
  });
  return {
    async until(count) {
      while (acknowledged.length < count && state.failures < 100) await pause(2);
    },
    async stop() {
      state.isGoing = false;
      await Promise.all(running);
      return acknowledged;
    },
  };
}
