import { join } from "node:path";
import type { Keys } from "../keys.ts";
import { spawnPart, type Part } from "../part.ts";
import { ROOT } from "../root.ts";
// Types only: Miniflare and esbuild belong to the host's process, not to this one.
import type { EdgeHostConfig } from "./edge-host.ts";
import { probeHttp } from "./inference.ts";

export interface EdgePartOptions {
  readonly port: number;
  /** Where its Durable Objects keep what they hold while the store is away. */
  readonly stateDir: string;
  readonly logDir: string;
  /** One for each shard. */
  readonly storeUrls: readonly string[];
  /** Tenants that live in another shard than their name says. */
  readonly storeHomes: Readonly<Record<string, number>>;
  /** Several with commas between. */
  readonly inferenceUrl: string;
  readonly keys: Keys;
  readonly agents: EdgeHostConfig["agents"];
}

const READY = /^edge listening on (http:\S+)/;

/** The edge with its agents (one host process and its workerd) as a supervised part. */
export function edgePart(options: EdgePartOptions): Part {
  const { port, stateDir, logDir, storeUrls, storeHomes, inferenceUrl, keys, agents } = options;
  const logPath = join(logDir, "edge.log");
  const bases = process.env["UPSTREAM_BASES"];
  const inferenceKey = process.env["FULGUR_INFERENCE_KEY"];
  const config: EdgeHostConfig = {
    port,
    state_dir: stateDir,
    store: storeUrls.map((url) => ({ url, write_token: keys.store.writeToken, read_token: keys.store.readToken })),
    store_homes: { ...storeHomes },
    inference_url: inferenceUrl,
    ...(inferenceKey === undefined || inferenceKey === "" ? {} : { inference_key: inferenceKey }),
    signing_keys: { keys: keys.edge.keys.map((key) => ({ ...key })) },
    vault_key: keys.vaultKey,
    agents,
    ...(bases === undefined ? {} : { upstream_bases: bases }),
  };
  return {
    name: "edge",
    logPath,
    async start() {
      const running = await spawnPart({
        name: "edge",
        command: process.execPath,
        args: [join(ROOT, "cli/parts/edge-host.ts")],
        logPath,
        env: { FULGUR_EDGE_CONFIG: JSON.stringify(config) },
        readyUrl: (line) => READY.exec(line)?.[1],
      });
      return { ...running, probe: () => probeHttp(`${running.url}/healthz`) };
    },
  };
}
