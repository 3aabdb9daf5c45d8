import type { Context } from "hono";
import { connectStore, type StoreDb } from "#shared/store/connect.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { Principal } from "#shared/tokens.ts";
import type { Authenticate } from "./auth.ts";
import { fetchBy, type EdgeConfig, type Env } from "./config.ts";
import type { Counters } from "./counters.ts";
import type { Directory, TenantDirectory } from "./directory.ts";
import type { KeyAuth } from "./key-auth.ts";
import type { Admission } from "./proxy/admission.ts";
import type { PromptMemory } from "./proxy/prompt-memory.ts";
import type { ProviderMemory } from "./proxy/provider/memory.ts";
import type { Resolver } from "./proxy/resolve.ts";
import type { Revocations } from "./revocations.ts";
import type { Sessions } from "./session.ts";

/** What lives as long as an isolate: configuration and caches. No connection: those belong to one request. */
export interface EdgeParts {
  readonly config: EdgeConfig;
  readonly authenticate: Authenticate;
  readonly keyAuth: KeyAuth;
  readonly directory: Directory;
  readonly sessions: Sessions;
  readonly revocations: Revocations;
  readonly admission: Admission;
  readonly resolver: Resolver;
  readonly providerMemory: ProviderMemory;
  readonly prompts: PromptMemory;
  readonly counters: Counters;
  /** Tells the dispatcher that these rollouts are queued. */
  readonly wakeDispatch: (env: Env, rolloutIds: readonly string[]) => Promise<void>;
  readonly now: () => number;
}

/** What routes find in Hono's context. */
export interface EdgeHono {
  Bindings: Env;
  Variables: {
    parts: EdgeParts;
    principal: Principal;
    db: () => StoreDb;
    writer: StoreWriter;
  };
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

/** A read-only connection of one request, made when it is first wanted. */
export function requestDb(config: EdgeConfig, env: Env): () => StoreDb {
  const { storeUrl: url, storeReadToken: token } = config;
  let db: StoreDb | undefined;
  return () => (db ??= connectStore({ url, token, timeoutMs: 5000, fetch: fetchBy(env.STORE) }));
}
