import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readPolicy, readVersion } from "#shared/store/policies.ts";
import type { Principal, RolloutClaims } from "#shared/tokens.ts";
import { parseVersionName, versionName } from "#shared/words.ts";
import type { AgentConfig } from "../config.ts";
import { TtlCache } from "../ttl-cache.ts";

export interface PolicyVersion {
  readonly policy: string;
  readonly version: number;
}

export interface Resolver {
  /**
   * The version that must answer: the token's pin, else an explicit `policy@version`, else the policy's route now.
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
  readonly agent: AgentConfig | undefined;
  readonly modelAsked: string;
  readonly now: number;
}

/**
 * How long an isolate may go on with the route that it knows. The version before is unloaded only when its last request
 * ends, so a call that is late by this much is answered, and recorded, as that version.
 */
const ROUTE_TTL_MS = 500;

export function resolver(): Resolver {
  const routes = new TtlCache<number>({ ttlMs: ROUTE_TTL_MS });
  // A registered version never changes or goes away.
  const registered = new TtlCache<true>({ ttlMs: 3_600_000 });

  async function routed(request: ResolveRequest, policy: string): Promise<PolicyVersion> {
    const { principal, db, now } = request;
    const key = `${principal.tenantId}/${policy}`;
    const known = routes.get(key, now);
    if (known !== undefined) return { policy, version: known };
    const row = await readPolicy(db(), principal.tenantId, policy);
    if (row === undefined) throw unknown(policy, "POST /v1/policies registers one");
    routes.set(key, row.routeVersion, now);
    return { policy, version: row.routeVersion };
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
      const { rollout, agent, modelAsked } = request;
      const named = parseVersionName(rollout.pin ?? modelAsked);
      if (named !== undefined) return exactly(request, named);
      if (agent === undefined) {
        throw new FulgurError(
          "ERR_UNKNOWN_POLICY",
          `agent ${rollout.agent} has no policy here; add it to the edge's AGENTS`,
        );
      }
      return routed(request, agent.policy);
    },
    forget: (tenantId, policy) => routes.delete(`${tenantId}/${policy}`),
  };
}

function unknown(name: string, next: string): FulgurError {
  return new FulgurError("ERR_UNKNOWN_POLICY", `there is no policy ${name}; ${next}`);
}
