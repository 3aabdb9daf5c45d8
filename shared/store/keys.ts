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
