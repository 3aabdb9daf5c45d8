import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readPolicy, readVersion } from "#shared/store/policies.ts";
import type { Principal, RolloutClaims } from "#shared/tokens.ts";
import { parseVersionName, versionName } from "#shared/words.ts";
import { TtlCache } from "../ttl-cache.ts";

export interface PolicyVersion {
  readonly policy: string;
  readonly version: number;
}

export interface Resolver {
  /**
   * The version that must answer: the token's pin, else an explicit `policy@version`, else the policy's route now. A pin
   * holds for its own policy, and for whatever the agent has not mapped by name.
   * Throws FulgurError ERR_UNKNOWN_POLICY when the policy or the version is not registered.
   */
  resolve(request: ResolveRequest): Promise<PolicyVersion>;
  /** Forgets a route that has just changed in this isolate. */
  forget(tenantId: string, policy: string): void;
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
const ROUTE_TTL_MS = 500;
/** A route in use is looked at again this often, beside a call and not before it. */
const REFRESH_MS = 250;

interface Route {
  readonly version: number;
  /** When to look again. */
  dueAt: number;
}

export function resolver(): Resolver {
  const routes = new TtlCache<Route>({ ttlMs: ROUTE_TTL_MS });
  // A registered version never changes or goes away.
  const registered = new TtlCache<true>({ ttlMs: 3_600_000 });

  async function routed(request: ResolveRequest, policy: string): Promise<PolicyVersion> {
    const known = routes.get(`${request.principal.tenantId}/${policy}`, request.now);
    if (known === undefined) return { policy, version: await readRoute(request, policy) };
    if (known.dueAt <= request.now) {
      known.dueAt = Infinity;
      // Where it fails, the route grows old and the calls themselves ask.
      request.later(readRoute(request, policy, known).catch(() => undefined));
    }
    return { policy, version: known.version };
  }

  /** @param before the route that this look refreshes: where it was forgotten meanwhile, what was read may be older */
  async function readRoute({ principal, db, now }: ResolveRequest, policy: string, before?: Route): Promise<number> {
    const key = `${principal.tenantId}/${policy}`;
    const row = await readPolicy(db(), principal.tenantId, policy);
    if (row === undefined) throw unknown(policy, "POST /v1/policies registers one");
    if (before === undefined || routes.get(key, now) === before) {
      routes.set(key, { version: row.routeVersion, dueAt: now + REFRESH_MS }, now);
    }
    return row.routeVersion;
  }

  async function exactly(request: ResolveRequest, named: PolicyVersion): Promise<PolicyVersion> {
    const { principal, db, now } = request;
    const key = `${principal.tenantId}/${versionName(named.policy, named.version)}`;
    if (registered.get(key, now) === undefined) {
      const row = await readVersion(db(), principal.tenantId, named.policy, named.version);
      if (row === undefined) {
        throw unknown(versionName(named.policy, named.version), "GET /v1/policies lists what there is");
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
    forget: (tenantId, policy) => routes.delete(`${tenantId}/${policy}`),
  };
}

function unknown(name: string, next: string): FulgurError {
  return new FulgurError("ERR_UNKNOWN_POLICY", `there is no policy ${name}; ${next}`);
}
