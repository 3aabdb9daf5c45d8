import { authenticator } from "./auth.ts";
import type { EdgeConfig } from "./config.ts";
import type { Edge, EdgeParts } from "./context.ts";
import { counters } from "./counters.ts";
import { directory } from "./directory.ts";
import { wakeDispatch } from "./dispatch/queue.ts";
import { keyAuth } from "./key-auth.ts";
import { admission } from "./proxy/admission.ts";
import { promptMemory } from "./proxy/prompt-memory.ts";
import { providerMemory } from "./proxy/provider/memory.ts";
import { resolver } from "./proxy/resolve.ts";
import { inferenceServers } from "./proxy/servers.ts";
import { revocations } from "./revocations.ts";
import { sessions } from "./session.ts";

export interface EdgeOptions {
  /** Milliseconds since the epoch. */
  readonly now?: () => number;
  readonly wakeDispatch?: EdgeParts["wakeDispatch"];
}

/** An isolate's edge with nothing remembered yet, its parts once for each shard. */
export function newEdge(config: EdgeConfig, { now = Date.now, wakeDispatch: wake }: EdgeOptions = {}): Edge {
  const { shards, shardOf } = config;
  const keys = keyAuth({ shards: shards.length, shardOf });
  const common = {
    config,
    authenticate: authenticator(config.signingKeys, keys),
    keyAuth: keys,
    counters: counters(),
    servers: inferenceServers(config.inferenceUrls),
    now,
  };
  return {
    ...common,
    parts: shards.map((shard) => ({
      ...common,
      shard,
      directory: directory(config),
      sessions: sessions(),
      revocations: revocations(),
      admission: admission(),
      resolver: resolver(),
      providerMemory: providerMemory(),
      prompts: promptMemory(),
      wakeDispatch: wake ?? ((env, rolloutIds) => wakeDispatch(env, { shard: shard.index, rolloutIds })),
    })),
  };
}
