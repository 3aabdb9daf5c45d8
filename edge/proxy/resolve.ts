import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readPolicy, readVersion, retiredMessage } from "#shared/store/policies.ts";
import type { Principal, RolloutClaims } from "#shared/tokens.ts";
import { parseVersionName, versionName } from "#shared/words.ts";
import { RetryLaterError } from "../http-errors.ts";
import { oneAsker } from "../one-asker.ts";
import { TtlCache } from "../ttl-cache.ts";

export interface PolicyVersion {
  readonly policy: string;
  readonly version: number;
}

export interface Resolver {
  /**
   * The version that must answer: the token's pin, else an explicit `policy@version`, else the policy's route now. A pin
   * holds for its own policy, and for whatever the agent has not mapped by name.
   * While the store is away, the route that was known last: what changes it goes through the store.
   * Throws FulgurError ERR_UNKNOWN_POLICY when the policy or the version is not registered or is retired, ERR_STORE when
   * the store is away and it is not known.
   */
  resolve(request: ResolveRequest): Promise<PolicyVersion>;
  /** Forgets a route that has just changed in this isolate, or a version that was retired. */
  forget(tenantId: string, name: string): void;
}

export interface ResolveRequest {
  readonly db: () => StoreDb;
  readonly principal: Principal;
  readonly rollout: RolloutClaims;
  readonly modelAsked: string;
  /** Where the agent's map leads that name. */
  readonly route: { readonly policy: string; readonly role: string };
  readonly now: number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

/**
 * How long an isolate may go on with the route that it knows. The version before is unloaded only when its last request
 * ends, so a call that is late by this much is answered, and recorded, as that version.
 */
const USABLE_MS = 500;
/** A route in use is looked at again this often, beside a call and not before it. */
const REFRESH_MS = 250;
/** A look of which nothing was heard for this long is not waited for. */
const LOOK_MS = 5000;
/** Older than usable, a route serves while the store is away. */
const KEPT_MS = 600_000;

interface Route {
  readonly version: number;
  readonly readAt: number;
  /** When to look again. */
  dueAt: number;
  /** The last look failed: until one succeeds, no call waits for another. */
  unread: boolean;
}

export function resolver(): Resolver {
  const routes = new TtlCache<Route>({ ttlMs: KEPT_MS });
  const one = oneAsker();
  // A version is what it was until it is retired; where another isolate retires it, inference has it no more.
  const registered = new TtlCache<true>({ ttlMs: 3_600_000 });

  async function routed(request: ResolveRequest, policy: string): Promise<PolicyVersion> {
    const { now } = request;
    const key = `${request.principal.tenantId}/${policy}`;
    const usable = (): Route | undefined => {
      const route = routes.get(key, now);
      return route !== undefined && (now - route.readAt < USABLE_MS || route.unread) ? route : undefined;
    };
    const known = usable();
    if (known === undefined) {
      const version = await one.ask(key, {
        known: () => usable()?.version,
        ask: () => readRoute(request, policy, routes.get(key, now)),
        now,
      });
      return { policy, version };
    }
    if (known.dueAt <= now) {
      known.dueAt = now + LOOK_MS;
      request.later(readRoute(request, policy, known).catch(() => undefined));
    }
    return { policy, version: known.version };
  }

  /** @param before the route that this look refreshes: where it was forgotten meanwhile, what was read may be older */
  async function readRoute({ principal, db, now }: ResolveRequest, policy: string, before?: Route): Promise<number> {
    const key = `${principal.tenantId}/${policy}`;
    let row: Awaited<ReturnType<typeof readPolicy>>;
    try {
      row = await readPolicy(db(), principal.tenantId, policy);
    } catch (cause) {
      if (before === undefined) throw storeAway(policy, cause);
      before.unread = true;
      before.dueAt = now + REFRESH_MS;
      return before.version;
    }
    if (row === undefined) {
      routes.delete(key);
      throw unknown(policy, "POST /v1/policies registers one");
    }
    if (before === undefined || routes.get(key, now) === before) {
      routes.set(key, { version: row.routeVersion, readAt: now, dueAt: now + REFRESH_MS, unread: false }, now);
    }
    return row.routeVersion;
  }

  async function exactly(request: ResolveRequest, named: PolicyVersion): Promise<PolicyVersion> {
    const { principal, db, now } = request;
    const key = `${principal.tenantId}/${versionName(named.policy, named.version)}`;
    if (registered.get(key, now) === undefined) {
      const row = await readVersion(db(), principal.tenantId, named.policy, named.version).catch((cause: unknown) => {
        throw storeAway(versionName(named.policy, named.version), cause);
      });
      if (row === undefined) {
        throw unknown(versionName(named.policy, named.version), "GET /v1/policies lists what there is");
      }
      // Not a conflict: SDKs repeat a 409.
      if (row.retiredAt !== null) {
        throw new FulgurError("ERR_UNKNOWN_POLICY", retiredMessage(versionName(named.policy, named.version)));
      }
      registered.set(key, true, now);
    }
    return named;
  }

  return {
    async resolve(request) {
      const { rollout, route, modelAsked } = request;
      const pin = rollout.pin === null ? undefined : parseVersionName(rollout.pin);
      if (pin !== undefined && (route.role === "main" || route.policy === pin.policy)) return exactly(request, pin);
      const named = route.role === "main" ? parseVersionName(modelAsked) : undefined;
      if (named !== undefined) return exactly(request, named);
      return routed(request, route.policy);
    },
    forget: (tenantId, name) => {
      routes.delete(`${tenantId}/${name}`);
      registered.delete(`${tenantId}/${name}`);
    },
  };
}

function storeAway(name: string, cause: unknown): RetryLaterError {
  return new RetryLaterError("ERR_STORE", `the store is away, so ${name} could not be looked up; try again`, {
    cause,
    retryAfterSeconds: 1,
  });
}

function unknown(name: string, next: string): FulgurError {
  return new FulgurError("ERR_UNKNOWN_POLICY", `there is no policy ${name}; ${next}`);
}
