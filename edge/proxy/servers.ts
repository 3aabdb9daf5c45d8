import { messageOf } from "#shared/errors.ts";
import type { InferenceServerClient } from "#shared/inference-client.ts";
import { logger } from "#shared/log.ts";
import { servedName } from "#shared/words.ts";
import { oneAsker } from "../one-asker.ts";
import { affinity, hashOf } from "./rendezvous.ts";
import type { FailedAttempt } from "./upstream.ts";

const log = logger("edge");

/**
 * The inference servers as one isolate sees them: which are in service, and who is asked for a call.
 *
 * A rollout stays with one server (rendezvous.ts). A server that breaks a connection or says that it is not healthy is out
 * of service until a look finds it healthy again and it has loaded the versions that the others answer. One that does not
 * know a version, as after a restart, is had to load it from the store's artifact: no trainer need run for that, and until
 * it has, it answers nothing of that version. Looks are made beside calls and not before them; without calls there are none.
 */
export interface InferenceServers {
  readonly states: () => readonly ServerState[];
  /** Who is asked for one call. */
  forCall(asked: AskedVersion, options: { readonly rolloutId: string; readonly reach: Reach }): ServersOfCall;
}

export interface ServerState {
  /** Its place in INFERENCE_URL, from 0 on. */
  readonly server: number;
  readonly inService: boolean;
}

export interface AskedVersion {
  readonly tenantId: string;
  readonly policy: string;
  readonly version: number;
}

/** What it takes of a request to reach the servers. Not to be kept beyond it. */
export interface Reach {
  readonly admin: (url: string) => InferenceServerClient;
  /** Folder or URI that a version is loaded from. @throws FulgurError when it is not registered, or the store away */
  readonly artifactOf: (asked: AskedVersion) => Promise<string>;
  readonly now: () => number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

export interface ServersOfCall {
  readonly maxAttempts: number;
  /** Base URL of who is to be asked now. */
  readonly url: () => string;
  /** Learns of a failed attempt. @returns whether another one is worth it at once; else after a wait, if at all */
  readonly failed: (attempt: FailedAttempt) => Promise<boolean>;
  /** Learns that the one asked last has answered. */
  readonly answered: () => void;
}

/** Between two looks at a server in service, and at one that is not. */
const LOOK_MS = 5000;
const LOOK_AGAIN_MS = 500;
/** A look of which nothing was heard for this long has ended with its request. */
const LOOK_PATIENCE_MS = 30_000;
/** What was answered within it is what a server must have to be back in service. */
const IN_USE_MS = 20_000;
const MOST_IN_USE = 256;
/** Where there is one server; each further one is another try. */
const ATTEMPTS = 4;

interface Server {
  readonly index: number;
  readonly url: string;
  readonly hash: number;
  /** Why it is out of service. */
  out: string | undefined;
  /** When to look at it, and since when somebody does. */
  lookAt: number;
  lookingSince: number | undefined;
  /** When it last loaded a version for us, by name. */
  readonly loadedAt: Map<string, number>;
}

/** @param urls base URLs, at least one */
export function inferenceServers(urls: readonly string[]): InferenceServers {
  const servers = urls.map((url, index): Server => {
    return { index, url, hash: hashOf(url), out: undefined, lookAt: 0, lookingSince: undefined, loadedAt: new Map() };
  });
  const isFleet = servers.length > 1;
  const one = oneAsker();
  /** What was answered lately, by name, the longest ago first. */
  const inUse = new Map<string, { readonly asked: AskedVersion; readonly at: number }>();
  const inService = ({ out }: Server): boolean => out === undefined;

  function takeOut(server: Server, reason: string): void {
    // There is nobody else to ask.
    if (!isFleet) return;
    if (server.out === undefined) log.warn("server.out_of_service", { server: server.index, url: server.url, reason });
    server.out = reason;
  }

  function bringBack(server: Server): void {
    if (server.out !== undefined) log.info("server.in_service", { server: server.index, url: server.url });
    server.out = undefined;
  }

  async function look(server: Server, { admin, artifactOf, now }: Reach): Promise<void> {
    const since = now();
    server.lookingSince = since;
    try {
      const client = admin(server.url);
      if (!(await client.isHealthy())) takeOut(server, "it does not say that it is healthy");
      else if (server.out !== undefined) {
        const names = await client.names();
        for (const [name, { asked, at }] of inUse) {
          if (since - at > IN_USE_MS) inUse.delete(name);
          else if (!names.has(name)) await client.load(name, await artifactOf(asked));
        }
        bringBack(server);
      }
    } catch (cause) {
      takeOut(server, messageOf(cause));
    } finally {
      server.lookingSince = undefined;
      server.lookAt = now() + (server.out === undefined ? LOOK_MS : LOOK_AGAIN_MS);
    }
  }

  function lookWhereDue(reach: Reach): void {
    const now = reach.now();
    for (const server of servers) {
      if (server.lookAt > now) continue;
      if (server.lookingSince !== undefined && now - server.lookingSince < LOOK_PATIENCE_MS) continue;
      reach.later(look(server, reach));
    }
  }

  /** Has a server load a version; of many calls that lack it at once, one. */
  async function restore(server: Server, asked: AskedVersion, { admin, artifactOf, now }: Reach): Promise<void> {
    const name = nameOf(asked);
    const lackedAt = now();
    await one.ask(`${server.index} ${name}`, {
      known: () => ((server.loadedAt.get(name) ?? -Infinity) > lackedAt ? true : undefined),
      ask: async () => {
        await admin(server.url).load(name, await artifactOf(asked));
        server.loadedAt.set(name, now());
        log.info("version.restored", { server: server.index, url: server.url, name });
        return true;
      },
      now: lackedAt,
    });
  }

  /** The first choice among them; none where there are none. */
  function firstOf(key: number, fits: (server: Server) => boolean): Server | undefined {
    let first: Server | undefined;
    for (const server of servers) {
      if (!fits(server)) continue;
      if (first === undefined || affinity(key, server.hash) > affinity(key, first.hash)) first = server;
    }
    return first;
  }

  return {
    states: () => servers.map(({ index, out }) => ({ server: index, inService: out === undefined })),

    forCall(asked, { rolloutId, reach }) {
      const key = isFleet ? hashOf(rolloutId) : 0;
      const refused = new Set<Server>();
      let restored: Server | undefined;
      let current: Server | undefined;

      function next(): Server | undefined {
        if (!isFleet) return servers[0];
        lookWhereDue(reach);
        // Where all are out, what is known of them may be old.
        const fits = servers.some(inService) ? inService : () => true;
        const untried = firstOf(key, (server) => fits(server) && !refused.has(server));
        if (untried !== undefined) return untried;
        refused.clear();
        return firstOf(key, fits);
      }

      return {
        maxAttempts: ATTEMPTS + servers.length - 1,

        url() {
          current = next();
          return current?.url ?? "";
        },

        async failed({ status, reason }) {
          if (current === undefined) return false;
          const server = current;
          if (status === 404 && restored !== server) {
            try {
              await restore(server, asked, reach);
              restored = server;
              return true;
            } catch (cause) {
              log.warn("version.not_restored", { server: server.index, name: nameOf(asked), error: messageOf(cause) });
            }
          }
          if (!isFleet) return false;
          refused.add(server);
          if (status === undefined) takeOut(server, reason);
          // One that is only full needs no look.
          if (status !== 429) server.lookAt = 0;
          return servers.some((other) => inService(other) && !refused.has(other));
        },

        answered() {
          if (!isFleet) return;
          const name = nameOf(asked);
          inUse.delete(name);
          inUse.set(name, { asked, at: reach.now() });
          if (inUse.size > MOST_IN_USE) for (const oldest of inUse.keys().take(1)) inUse.delete(oldest);
        },
      };
    },
  };
}

function nameOf({ tenantId, policy, version }: AskedVersion): string {
  return servedName(tenantId, policy, version);
}
