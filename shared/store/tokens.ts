import { and, eq } from "drizzle-orm";
import { revokedTokens } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

const insertRevoked = insertInto(revokedTokens);

/** Revokes a token until it expires; rows of tokens that have expired are removed on the way. */
export function revokeToken(
  token: { readonly jti: string; readonly tenantId: string; readonly expiresAt: number },
  now: number,
): Statement[] {
  return [insertRevoked(token), { sql: `delete from revoked_tokens where expires_at < ?`, args: [now] }];
}

export async function isRevoked(db: StoreDb, tenantId: string, jti: string): Promise<boolean> {
  const rows = await db
    .select({ jti: revokedTokens.jti })
    .from(revokedTokens)
    .where(and(eq(revokedTokens.tenantId, tenantId), eq(revokedTokens.jti, jti)))
    .limit(1);
  return rows.length > 0;
}

/** Every revoked token that is still alive, for a cache that is refreshed now and then. */
export async function listRevoked(db: StoreDb): Promise<{ readonly tenantId: string; readonly jti: string }[]> {
  return db.select({ tenantId: revokedTokens.tenantId, jti: revokedTokens.jti }).from(revokedTokens);
}
