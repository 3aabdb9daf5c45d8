import { existsSync } from "node:fs";
import { mkdir, readFile, stat } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { migrate } from "drizzle-orm/libsql/migrator";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { connectStore } from "#shared/store/connect.ts";
import { openPipeline } from "#shared/store/pipeline.ts";
import { lastWords, spawnPart, type RunningPart, type StorePartName } from "../part.ts";
import type { StoreKeys } from "../keys.ts";

export interface StoreStartOptions {
  readonly name?: StorePartName;
  /** Where the database lies; made when missing. */
  readonly dir: string;
  readonly port: number;
  readonly host?: string;
  readonly keys: StoreKeys;
  readonly logPath: string;
  readonly readyWithinMs?: number;
  /** Folder of the migrations to bring the schema up with. */
  readonly migrationsDir?: string;
}

export interface RunningStore extends RunningPart {
  readonly url: string;
  /** Writes one row: a server that is wedged still answers reads and `/health`. Rejects with ERR_STORE or ERR_DISK. */
  readonly probe: () => Promise<void>;
}

const PROBE_TIMEOUT_MS = 5000;

/**
 * Starts libSQL's server on loopback and brings its schema up to date.
 * @throws FulgurError ERR_PLATFORM where there is no server for this platform, ERR_PORT_TAKEN, ERR_DISK when the disk
 * is full or the folder cannot be written, ERR_STORE when it does not come up
 */
export async function startStore(options: StoreStartOptions): Promise<RunningStore> {
  const { name = "store", dir, port, host = "127.0.0.1", keys, logPath } = options;
  const { readyWithinMs = 15_000, migrationsDir = MIGRATIONS } = options;
  const command = findSqld();
  await requireFreePort(host, port);
  try {
    await mkdir(dir, { recursive: true });
    await mkdir(dirname(logPath), { recursive: true });
  } catch (cause) {
    throw new FulgurError(
      "ERR_DISK",
      `the store's folder ${dir} could not be made (${messageOf(cause)}); check its owner and the disk`,
      { cause },
    );
  }
  const url = `http://${host}:${port}`;
  const loggedBefore = await stat(logPath).then(
    ({ size }) => size,
    () => 0,
  );
  const part = await spawnPart({
    name,
    command,
    args: [
      "--db-path",
      join(dir, "data.sqld"),
      "--http-listen-addr",
      `${host}:${port}`,
      "--auth-jwt-key-file",
      keys.publicKeyPath,
      "--shutdown-timeout",
      "5",
      "--no-welcome",
      "--disable-metrics",
    ],
    logPath,
    readyUrl: null,
  });
  const pipeline = openPipeline({ url, token: keys.writeToken, timeoutMs: PROBE_TIMEOUT_MS });
  try {
    await untilAnswers(part, async () => void (await pipeline.run([{ sql: "select 1", args: [] }])), {
      readyWithinMs,
      logPath,
    });
    await migrateStore({ url, token: keys.writeToken }, migrationsDir);
  } catch (cause) {
    await part.stop();
    throw await explained(cause, dir, await logSince(logPath, loggedBefore));
  }
  return {
    ...part,
    url,
    async probe() {
      await pipeline.run([
        {
          sql: "insert into probes (id, touched_at) values (1, ?) on conflict (id) do update set touched_at = excluded.touched_at",
          args: [Date.now()],
        },
      ]);
    },
  };
}

/** Brings a database's schema up to date; repeatable. @param store with a token that may write */
export async function migrateStore(
  store: { readonly url: string; readonly token: string },
  migrationsDir = MIGRATIONS,
): Promise<void> {
  await migrate(connectStore({ ...store, timeoutMs: 30_000 }), { migrationsFolder: migrationsDir });
}

/**
 * The server's binary for this platform.
 * @throws FulgurError ERR_PLATFORM
 */
export function findSqld(platform: string = process.platform, arch: string = process.arch): string {
  const name = `@sqld/${platform}-${arch}`;
  const supported = SUPPORTED.has(`${platform}-${arch}`);
  try {
    const binary = join(dirname(createRequire(import.meta.url).resolve(`${name}/package.json`)), "sqld");
    if (existsSync(binary)) return binary;
  } catch {
    // not installed: the sentence below
  }
  throw new FulgurError(
    "ERR_PLATFORM",
    supported
      ? `the libSQL server for ${platform}-${arch} is not installed (package ${name}); run npm install without --omit=optional`
      : `there is no libSQL server for ${platform}-${arch} (there is for ${[...SUPPORTED].join(", ")}); on Windows use WSL, elsewhere run Fulgur in a Linux container`,
  );
}

const SUPPORTED = new Set(["linux-x64", "linux-arm64", "darwin-arm64"]);
const MIGRATIONS = fileURLToPath(new URL("../../migrations", import.meta.url));

function requireFreePort(host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", (cause: NodeJS.ErrnoException) => {
      reject(
        cause.code === "EADDRINUSE"
          ? new FulgurError(
              "ERR_PORT_TAKEN",
              `port ${port}, where the store listens, is taken; stop what listens there, or move all ports with --port-base`,
              { cause },
            )
          : cause,
      );
    });
    probe.listen({ host, port, exclusive: true }, () => probe.close(() => resolve()));
  });
}

async function untilAnswers(
  part: RunningPart,
  ask: () => Promise<void>,
  { readyWithinMs, logPath }: { readonly readyWithinMs: number; readonly logPath: string },
): Promise<void> {
  const deadline = Date.now() + readyWithinMs;
  let over = false;
  void part.ended.then(() => (over = true));
  for (;;) {
    try {
      return await ask();
    } catch (cause) {
      if (over || Date.now() > deadline) {
        const what = over ? "ended at once" : `did not answer within ${readyWithinMs / 1000} s`;
        throw new FulgurError("ERR_STORE", `the libSQL server ${what}. ${await lastWords(logPath)}`, { cause });
      }
    }
    await pause(25);
  }
}

/** The failure as one sentence with what to do, where the server's log tells. */
async function explained(cause: unknown, dir: string, said: string): Promise<unknown> {
  const words = `${messageOf(cause)} ${said}`;
  if (/SQLITE_FULL|disk is full|No space left/i.test(words)) {
    return new FulgurError("ERR_DISK", `the disk that holds ${dir} is full; free some space and start again`, {
      cause,
    });
  }
  if (/Permission denied|SQLITE_CANTOPEN|unable to open database|readonly database/i.test(words)) {
    return new FulgurError("ERR_DISK", `the store's folder ${dir} cannot be written; check its owner and mode`, {
      cause,
    });
  }
  if (/not a database|NOTADB|NotADatabase|malformed|SQLITE_CORRUPT|multiple of page size/i.test(words)) {
    return new FulgurError(
      "ERR_STORE",
      `the database in ${dir} is damaged or not libSQL's; restore a backup, or move the folder away to begin anew`,
      { cause },
    );
  }
  return cause;
}

/** What the log got since it had so many bytes; a rotated one is read from its beginning. */
async function logSince(path: string, bytes: number): Promise<string> {
  const log = await readFile(path).catch(() => Buffer.alloc(0));
  return log.subarray(log.length < bytes ? 0 : bytes).toString("utf8");
}
