import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ensureKeys, type StoreKeys } from "../../cli/keys.ts";
import { startStore, type RunningStore } from "../../cli/parts/store.ts";
import { connectStore, type StoreDb } from "#shared/store/connect.ts";
import { openPipeline } from "#shared/store/pipeline.ts";
import type { StoreWriter } from "#shared/store/statement.ts";

export interface TestStore {
  readonly url: string;
  readonly keys: StoreKeys;
  readonly db: StoreDb;
  /** Writes straight to the server, one transaction at a time, without the edge's Durable Object. */
  readonly writer: StoreWriter;
  readonly port: number;
  readonly pid: number;
  /** SIGKILL, as a crash. */
  readonly kill: () => Promise<void>;
  /** Starts it again on the same port and data after {@link kill}. */
  readonly restart: () => Promise<void>;
  /** Stops the server and removes its folder. */
  readonly stop: () => Promise<void>;
}

/** A real libSQL server with the schema, in a temporary folder, on a free port. */
export async function startTestStore(parent = tmpdir()): Promise<TestStore> {
  const folder = await mkdtemp(join(parent, "fulgur-store-"));
  const { store: keys } = await ensureKeys(join(folder, "keys"));
  const port = await freePort();
  const start = (): Promise<RunningStore> =>
    startStore({ dir: join(folder, "store"), port, keys, logPath: join(folder, "store.log") });
  let running = await start();
  return {
    url: running.url,
    keys,
    db: connectStore({ url: running.url, token: keys.readToken }),
    writer: directWriter(running.url, keys.writeToken),
    port,
    get pid() {
      return running.pid;
    },
    async kill() {
      process.kill(running.pid, "SIGKILL");
      await running.ended;
    },
    async restart() {
      running = await start();
    },
    async stop() {
      await running.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** A port of the loopback address that is free now. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen({ host: "127.0.0.1", port: 0 }, () => {
      const address = server.address();
      const port = typeof address === "object" && address !== null ? address.port : 0;
      server.close(() => resolve(port));
    });
  });
}

/** One writing connection: libSQL's server stalls under several. */
export function directWriter(url: string, token: string): StoreWriter {
  const pipeline = openPipeline({ url, token, keepStream: true });
  let before: Promise<unknown> = Promise.resolve();
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const mine = before.then(work, work);
    before = mine.catch(() => undefined);
    return mine;
  };
  return {
    append: (units) =>
      inTurn(async () => {
        for (const unit of units) await pipeline.run(unit, { rows: "none" });
      }),
    transact: (statements) => inTurn(() => pipeline.run(statements)),
    status: () => Promise.resolve({ storeUp: true, outbox: 0 }),
  };
}
