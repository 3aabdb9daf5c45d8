import type { StoreDb } from "#shared/store/connect.ts";
import { isRevoked, rolloutJti } from "#shared/store/tokens.ts";
import type { Principal } from "#shared/tokens.ts";
import { FulgurError } from "#shared/errors.ts";
import { TtlCache } from "./ttl-cache.ts";

/** Tokens that were revoked before they expired; LLM calls have their own look at it in proxy/admission.ts. */
export interface Revocations {
  /** Throws FulgurError ERR_AUTH for a revoked token. */
  check(principal: Principal, db: () => StoreDb, now: number): Promise<void>;
  /** Makes a tenant's revocation felt at once in this isolate; `rollout:<id>` for all of a rollout. */
  note(revoked: { readonly tenantId: string; readonly jti: string }, now: number): void;
}

/** How late another isolate may notice. */
const FRESH_MS = 2000;

export function revocations(): Revocations {
  const known = new TtlCache<boolean>({ ttlMs: FRESH_MS });
  return {
    async check({ tenantId, jti, rollout, keyId }, db, now) {
      // A key is looked up, revocation and all, where it is authenticated.
      if (keyId !== undefined) return;
      const jtis = rollout === undefined ? [jti] : [jti, rolloutJti(rollout.rolloutId)];
      const own = keyOf({ tenantId, jti });
      let revoked: boolean | undefined = jtis.some((one) => known.get(keyOf({ tenantId, jti: one }), now) === true);
      if (!revoked) revoked = known.get(own, now);
      if (revoked === undefined) {
        // While the store is away the signature and the short life of a token must do.
        revoked = await isRevoked(db(), tenantId, ...jtis).catch(() => false);
        known.set(own, revoked, now);
      }
      if (revoked) throw new FulgurError("ERR_AUTH", "the token was revoked; ask for a fresh one");
    },
    note: (revoked, now) => known.set(keyOf(revoked), true, now),
  };
}

/** By tenant: what one revokes ends nothing of another's. */
function keyOf({ tenantId, jti }: { readonly tenantId: string; readonly jti: string }): string {
  return `${tenantId}/${jti}`;
}
