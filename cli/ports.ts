import { readFile, readdir, readlink } from "node:fs/promises";
import { createServer } from "node:net";
import { FulgurError } from "#shared/errors.ts";
import { storePartName } from "./part.ts";

export const DEFAULT_PORT_BASE = 8787;
const HOST = "127.0.0.1";

/** Where the parts listen on one machine: three neighbouring ports of the loopback address, one more for each more shard. */
export interface Ports {
  readonly edge: number;
  readonly inference: number;
  readonly store: number;
  /** Of the store's shards but the first. */
  readonly moreStores?: readonly number[];
}

/** @throws FulgurError ERR_CONFIG when one of them would not be a port */
export function portsFrom(base: number, shards = 1): Ports {
  const last = 65_534 - shards;
  if (!Number.isInteger(base) || base < 1024 || base > last) {
    throw new FulgurError("ERR_CONFIG", `--port-base takes a port from 1024 to ${last}, got ${base}`);
  }
  const ports = { edge: base, inference: base + 1, store: base + 2 };
  if (shards === 1) return ports;
  return { ...ports, moreStores: Array.from({ length: shards - 1 }, (_, at) => base + 3 + at) };
}

/** `http://127.0.0.1:8787` */
export function localUrl(port: number): string {
  return `http://${HOST}:${port}`;
}

/**
 * Tries all ports, so that a taken one is one clear sentence before anything has started.
 * @throws FulgurError ERR_PORT_TAKEN naming the port, its holder where the platform tells, and the way round
 */
export async function requireFreePorts({ moreStores = [], ...ports }: Ports): Promise<void> {
  const shards = moreStores.map((port, at): [string, number] => [storePartName(at + 1), port]);
  for (const [part, port] of [...Object.entries(ports), ...shards]) {
    if (await isFree(port)) continue;
    const holder = await holderOf(port);
    throw new FulgurError(
      "ERR_PORT_TAKEN",
      `port ${port}, where the ${part} listens, is taken${holder === undefined ? "" : ` by process ${holder}`}; ` +
        `stop that, or move all ports with --port-base`,
    );
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EADDRINUSE") resolve(false);
      else reject(error);
    });
    probe.listen({ port, host: HOST, exclusive: true }, () => probe.close(() => resolve(true)));
  });
}

/** `123 (node)` from Linux' /proc, for processes that this user may see; undefined elsewhere. */
async function holderOf(port: number): Promise<string | undefined> {
  try {
    const inodes = new Set<string>();
    for (const table of ["/proc/net/tcp", "/proc/net/tcp6"]) {
      for (const line of (await readFile(table, "utf8")).split("\n").slice(1)) {
        const fields = line.trim().split(/\s+/);
        const localPort = Number.parseInt(fields[1]?.split(":")[1] ?? "", 16);
        const listening = fields[3] === "0A";
        if (listening && localPort === port && fields[9] !== undefined) inodes.add(`socket:[${fields[9]}]`);
      }
    }
    for (const pid of await readdir("/proc")) {
      if (!/^\d+$/.test(pid)) continue;
      const handles = await readdir(`/proc/${pid}/fd`).catch(() => []);
      for (const handle of handles) {
        const target = await readlink(`/proc/${pid}/fd/${handle}`).catch(() => "");
        if (inodes.has(target)) return `${pid} (${(await readFile(`/proc/${pid}/comm`, "utf8")).trim()})`;
      }
    }
  } catch {
    // no /proc here
  }
  return undefined;
}
