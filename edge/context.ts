import type { Context } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { connectStore, type StoreDb } from "#shared/store/connect.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { Principal } from "#shared/tokens.ts";
import type { Authenticate } from "./auth.ts";
import { storeFetch, writerOf, type EdgeConfig, type Env } from "./config.ts";
import type { Counters } from "./counters.ts";
import type { Directory, TenantDirectory } from "./directory.ts";
import type { KeyAuth } from "./key-auth.ts";
import type { Admission } from "./proxy/admission.ts";
import type { PromptMemory } from "./proxy/prompt-memory.ts";
import type { ProviderMemory } from "./proxy/provider/memory.ts";
import type { Resolver } from "./proxy/resolve.ts";
import type { InferenceServers } from "./proxy/servers.ts";
import { storeWriter } from "./record/writer-client.ts";
import type { Revocations } from "./revocations.ts";
import type { Sessions } from "./session.ts";
import type { StoreShard } from "./shards.ts";

/** What lives as long as an isolate: configuration and caches. No connection: those belong to one request. */
export interface Edge {
  readonly config: EdgeConfig;
  readonly authenticate: Authenticate;
  readonly keyAuth: KeyAuth;
  readonly counters: Counters;
  readonly servers: InferenceServers;
  readonly now: () => number;
  /** By shard. */
  readonly parts: readonly EdgeParts[];
}

/**
 * An edge as the tenants of one shard have it. What it remembers is of that shard alone: a rollout's id, for one, is
 * unique in its database and may be somebody else's in another.
 */
export interface EdgeParts extends Omit<Edge, "parts"> {
  readonly shard: StoreShard;
  readonly directory: Directory;
  readonly sessions: Sessions;
  readonly revocations: Revocations;
  readonly admission: Admission;
  readonly resolver: Resolver;
  readonly providerMemory: ProviderMemory;
  readonly prompts: PromptMemory;
  /** Tells the shard's dispatcher that these rollouts are queued. */
  readonly wakeDispatch: (env: Env, rolloutIds: readonly string[]) => Promise<void>;
}

/** What routes find in Hono's context. */
export interface EdgeHono {
  Bindings: Env;
  Variables: {
    edge: Edge;
    /** From here on what {@link proveCaller} finds: nothing of it is there before. */
    principal: Principal;
    /** Of the caller's shard, as its database and its writer. */
    parts: EdgeParts;
    db: () => StoreDb;
    writer: StoreWriter;
  };
}

/**
 * Who calls, by token or key, and with it everything of the shard that it lives in.
 * @throws FulgurError what {@link Authenticate} and {@link Revocations} throw
 */
export async function proveCaller(c: Context<EdgeHono>): Promise<void> {
  const { edge } = c.var;
  const now = edge.now();
  const dbOf = requestDbs(edge.config, c.env);
  const later = (work: Promise<unknown>): void => c.executionCtx.waitUntil(work);
  const principal = await edge.authenticate(c.req.raw, { dbOf, now, later });
  const parts = partsOf(edge, principal.tenantId);
  const { index } = parts.shard;
  const db = (): StoreDb => dbOf(index);
  await parts.revocations.check(principal, db, now);
  c.set("principal", principal);
  c.set("parts", parts);
  c.set("db", db);
  c.set("writer", storeWriter(writerOf(c.env, index)));
}

/** The edge as a tenant has it. */
export function partsOf({ config, parts }: Edge, tenantId: string): EdgeParts {
  const own = parts[config.shardOf(tenantId)];
  if (own === undefined) throw new FulgurError("ERR_INTERNAL", `tenant ${tenantId} lives in a shard that is not there`);
  return own;
}

/** The agents and providers of the tenant that asks. */
export function tenantDirectory(c: Context<EdgeHono>): Promise<TenantDirectory> {
  const { parts, principal, db } = c.var;
  return parts.directory.of({
    tenantId: principal.tenantId,
    db,
    now: parts.now(),
    later: (work) => c.executionCtx.waitUntil(work),
  });
}

/** Read-only connections of one request by shard, each made when it is first wanted. */
export function requestDbs(config: EdgeConfig, env: Env): (shard: number) => StoreDb {
  const made: (StoreDb | undefined)[] = [];
  return (shard) => (made[shard] ??= shardDb(config, env, shard));
}

/** A read-only connection to a shard; not to be kept beyond its request. */
export function shardDb({ shards }: EdgeConfig, env: Env, shard: number): StoreDb {
  const { url, token } = shards[shard] ?? {};
  if (url === undefined || token === undefined) throw new FulgurError("ERR_INTERNAL", `there is no shard ${shard}`);
  return connectStore({ url, token, timeoutMs: 5000, fetch: storeFetch(env, shard) });
}
