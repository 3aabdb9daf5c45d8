import { FulgurError } from "#shared/errors.ts";
import { hashKey, keyIdOf, sameHash, shardOfKeyId } from "#shared/keys.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { findKey } from "#shared/store/keys.ts";
import type { Principal } from "#shared/tokens.ts";
import type { KeyScope, Scope } from "#shared/words.ts";
import { RetryLaterError } from "./http-errors.ts";
import { rateLimit } from "./rate-limit.ts";
import { TtlCache } from "./ttl-cache.ts";

/** Who is calling with a long-lived key. */
export interface KeyAuth {
  /**
   * The key's owner and what it may do. A revoked key is refused within two seconds, and in the isolate that revoked it
   * at once. Throws FulgurError ERR_AUTH, ERR_OVERLOADED over the key's rate, ERR_STORE where the store is away and the key has
   * not been seen lately.
   */
  authenticate(key: string, request: KeyAuthRequest): Promise<Principal>;
  /** Makes a revocation felt at once in this isolate. */
  note(revokedKeyId: string, now: number): void;
}

export interface KeyAuthRequest {
  /** A shard's database; for a token none is asked. */
  readonly dbOf: (shard: number) => StoreDb;
  readonly now: number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

export interface KeyPlacement {
  readonly shards?: number;
  readonly shardOf?: (tenantId: string) => number;
}

/** What a key's scope lets a principal do: who trains also reads and runs agents. */
const GRANTS: Readonly<Record<KeyScope, readonly Scope[]>> = {
  admin: ["admin"],
  agent: ["agent"],
  trainer: ["trainer", "read", "agent"],
  read: ["read"],
};

/** Younger, a look at the store is simply used; older, it is repeated beside the call. */
const FRESH_MS = 1000;
/** Older, the call waits for it. */
const USABLE_MS = 2000;
/** Older than that too, it serves while the store is away. */
const KEPT_MS = 600_000;

/** @param placement how many shards there are, and where tenants live; one for all where absent */
export function keyAuth({ shards = 1, shardOf = () => 0 }: KeyPlacement = {}): KeyAuth {
  const looks = new TtlCache<Look>({ ttlMs: KEPT_MS, maxEntries: 4096 });
  const revoked = new TtlCache<true>({ ttlMs: KEPT_MS });
  const limit = rateLimit();
  /** Keys that are being looked at beside a call, since when. */
  const asking = new Map<string, number>();
  /** When looking last failed, by key. */
  const lookFailed = new Map<string, number>();

  async function look(key: string, id: string, { dbOf, now }: KeyAuthRequest): Promise<Look> {
    const shard = shardOfKeyId(id);
    const hash = await hashKey(key);
    const row = shard < shards ? await findKey(dbOf(shard), id) : undefined;
    const good =
      row !== undefined &&
      sameHash(row.hash, hash) &&
      row.revokedAt === null &&
      // What is left of a tenant that was moved away opens nothing: its revocations are elsewhere now.
      shardOf(row.tenantId) === shard;
    const seen: Look = {
      readAt: now,
      ratePerMinute: row?.ratePerMinute ?? null,
      principal: good
        ? {
            tenantId: row.tenantId,
            scopes: GRANTS[row.scope],
            jti: `key:${id}`,
            expiresAtSeconds: Number.MAX_SAFE_INTEGER,
            keyId: id,
            ...(row.agent === null ? {} : { keyAgent: row.agent }),
          }
        : undefined,
    };
    looks.set(key, seen, now);
    return seen;
  }

  function lookAgain(key: string, id: string, request: KeyAuthRequest): void {
    const { now } = request;
    if (now - (asking.get(id) ?? 0) < USABLE_MS) return;
    asking.set(id, now);
    request.later(
      look(key, id, request)
        .catch(() => undefined)
        .finally(() => asking.delete(id)),
    );
  }

  async function lookedAt(key: string, id: string, request: KeyAuthRequest): Promise<Look> {
    const { now } = request;
    const known = looks.get(key, now);
    const age = known === undefined ? Infinity : now - known.readAt;
    if (known !== undefined && (age < USABLE_MS || now - (lookFailed.get(id) ?? 0) < USABLE_MS)) {
      if (age >= FRESH_MS) lookAgain(key, id, request);
      return known;
    }
    try {
      return await look(key, id, request);
    } catch (cause) {
      // While the store hangs, one call in a while waits for it, and not each.
      lookFailed.set(id, now);
      if (known !== undefined) return known;
      throw new RetryLaterError("ERR_STORE", "the store is away, so the key could not be checked; try again", {
        cause,
        retryAfterSeconds: 1,
      });
    }
  }

  return {
    async authenticate(key, request) {
      const id = keyIdOf(key);
      const seen = id === undefined ? undefined : await lookedAt(key, id, request);
      if (id === undefined || seen?.principal === undefined || revoked.get(id, request.now) !== undefined) {
        throw new FulgurError(
          "ERR_AUTH",
          "the key was refused: it is unknown or was revoked; an admin makes one with npx fulgur keys create",
        );
      }
      if (seen.ratePerMinute !== null) limit.take(id, seen.ratePerMinute, request.now);
      return seen.principal;
    },
    note: (revokedKeyId, now) => revoked.set(revokedKeyId, true, now),
  };
}

/** What the store said of a key. */
interface Look {
  readonly readAt: number;
  /** Undefined where the key is not good. */
  readonly principal: Principal | undefined;
  readonly ratePerMinute: number | null;
}
