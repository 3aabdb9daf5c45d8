import { and, desc, eq } from "drizzle-orm";
import { keys } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

/** Long-lived keys; the store has a hash of each and never the key. */
export type StoredKey = typeof keys.$inferSelect;

const insertKey = insertInto(keys);

export function createKey(key: StoredKey): Statement[] {
  return [insertKey(key)];
}

/** Revokes a key for good; changes nothing where it is unknown or revoked already. */
export function revokeKey(tenantId: string, id: string, now: number): Statement {
  return {
    sql: `update keys set revoked_at = ? where tenant_id = ? and id = ? and revoked_at is null returning id`,
    args: [now, tenantId, id],
  };
}

/** How far back it is looked for tokens that minted tokens. */
const DESCENT_MS = 24 * 3_600_000;

/**
 * Revokes the tokens that a key has minted, and those that they have minted, of which the audit knows.
 * @param lifeMs the longest that a token is taken; older ones are left alone
 * @returns a statement that gives the `jti` of each
 */
export function revokeTokensOfKey(
  { tenantId, id }: { readonly tenantId: string; readonly id: string },
  { now, lifeMs }: { readonly now: number; readonly lifeMs: number },
): Statement {
  return {
    sql: `insert into revoked_tokens (jti, tenant_id, expires_at)
      with recursive minted(jti, at) as (
        select target, created_at from audit
          where tenant_id = ?1 and created_at > ?3 and action = 'token.minted' and actor = ?2
        union
        select a.target, a.created_at from minted m join audit a
          on a.tenant_id = ?1 and a.created_at > ?3 and a.action = 'token.minted' and a.actor = 'token:' || m.jti
      )
      select jti, ?1, at + ?4 from minted where at > ?5
      on conflict do nothing returning jti`,
    args: [tenantId, `key:${id}`, now - DESCENT_MS, lifeMs, now - lifeMs],
  };
}

/** A key of any tenant by its id: whose it is, is what a key tells. */
export async function findKey(db: StoreDb, id: string): Promise<StoredKey | undefined> {
  return (await db.select().from(keys).where(eq(keys.id, id)).limit(1))[0];
}

export async function readKey(db: StoreDb, tenantId: string, id: string): Promise<StoredKey | undefined> {
  return (
    await db
      .select()
      .from(keys)
      .where(and(eq(keys.tenantId, tenantId), eq(keys.id, id)))
      .limit(1)
  )[0];
}

/** A tenant's keys, newest first. */
export async function listKeys(db: StoreDb, tenantId: string): Promise<StoredKey[]> {
  return db.select().from(keys).where(eq(keys.tenantId, tenantId)).orderBy(desc(keys.createdAt), desc(keys.id));
}
