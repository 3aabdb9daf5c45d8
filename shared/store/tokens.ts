import { and, eq, inArray } from "drizzle-orm";
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

/** What stands in the place of a `jti` where every token of a rollout is revoked. */
export function rolloutJti(rolloutId: string): string {
  return `rollout:${rolloutId}`;
}

/** Whether any of these is revoked: a token's `jti`, and its rollout's where it has one. */
export async function isRevoked(db: StoreDb, tenantId: string, ...jtis: readonly string[]): Promise<boolean> {
  const rows = await db
    .select({ jti: revokedTokens.jti })
    .from(revokedTokens)
    .where(and(eq(revokedTokens.tenantId, tenantId), inArray(revokedTokens.jti, [...jtis])))
    .limit(1);
  return rows.length > 0;
}

/** Every revoked token that is still alive, for a cache that is refreshed now and then. */
export async function listRevoked(db: StoreDb): Promise<{ readonly tenantId: string; readonly jti: string }[]> {
  return db.select({ tenantId: revokedTokens.tenantId, jti: revokedTokens.jti }).from(revokedTokens);
}
