import { connectStore, type StoreDb } from "#shared/store/connect.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { Principal } from "#shared/tokens.ts";
import type { Authenticate } from "./auth.ts";
import { fetchBy, type EdgeConfig, type Env } from "./config.ts";
import type { Counters } from "./counters.ts";
import type { Admission } from "./proxy/admission.ts";
import type { Resolver } from "./proxy/resolve.ts";
import type { Revocations } from "./revocations.ts";

/** What lives as long as an isolate: configuration and caches. No connection: those belong to one request. */
export interface EdgeParts {
  readonly config: EdgeConfig;
  readonly authenticate: Authenticate;
  readonly revocations: Revocations;
  readonly admission: Admission;
  readonly resolver: Resolver;
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

/** A read-only connection of one request, made when it is first wanted. */
export function requestDb(config: EdgeConfig, env: Env): () => StoreDb {
  const { storeUrl: url, storeReadToken: token } = config;
  let db: StoreDb | undefined;
  return () => (db ??= connectStore({ url, token, timeoutMs: 5000, fetch: fetchBy(env.STORE) }));
}
