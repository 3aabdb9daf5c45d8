import type { StoreDb } from "#shared/store/connect.ts";
import { isRevoked } from "#shared/store/tokens.ts";
import type { Principal } from "#shared/tokens.ts";
import { FulgurError } from "#shared/errors.ts";
import { TtlCache } from "./ttl-cache.ts";

/** Tokens that were revoked before they expired; LLM calls have their own look at it in proxy/admission.ts. */
export interface Revocations {
  /** Throws FulgurError ERR_AUTH for a revoked token. */
  check(principal: Principal, db: () => StoreDb, now: number): Promise<void>;
  /** Makes a revocation felt at once in this isolate. */
  note(jti: string, now: number): void;
}

/** How late another isolate may notice. */
const FRESH_MS = 2000;

export function revocations(): Revocations {
  const known = new TtlCache<boolean>({ ttlMs: FRESH_MS });
  return {
    async check({ tenantId, jti }, db, now) {
      let revoked = known.get(jti, now);
      if (revoked === undefined) {
        // While the store is away the signature and the short life of a token must do.
        revoked = await isRevoked(db(), tenantId, jti).catch(() => false);
        known.set(jti, revoked, now);
      }
      if (revoked) throw new FulgurError("ERR_AUTH", "the token was revoked; ask for a fresh one");
    },
    note: (jti, now) => known.set(jti, true, now),
  };
}
