import { and, desc, eq, sql } from "drizzle-orm";
import { uuidv7 } from "uuidv7";
import { audit, type Json } from "#shared/tables.ts";
import type { Principal } from "#shared/tokens.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

/** Who minted, revoked, promoted, deleted: a row in the transaction of what it tells of. */

export type AuditEntry = typeof audit.$inferSelect;

/** noun.verb; part of the wire. */
export type AuditAction =
  | "agent.deleted"
  | "agent.put"
  | "key.created"
  | "key.revoked"
  | "policy.registered"
  | "policy.retired"
  | "policy.routed"
  | "price.set"
  | "provider.deleted"
  | "provider.put"
  | "rollout.deleted"
  | "rollout.tokens_revoked"
  | "subject.deleted"
  | "tenant.set"
  | "token.minted"
  | "token.revoked";

export interface Deed {
  readonly by: Pick<Principal, "tenantId" | "jti" | "keyId">;
  readonly action: AuditAction;
  /** The id of what it was done to. */
  readonly target: string;
  /** Never a secret. */
  readonly detail?: Json;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

/** The row of a deed that is done whenever its transaction is. */
export function audited(deed: Deed): Statement {
  return insertEntry(entryOf(deed));
}

/**
 * The row of a deed that is done only if the statement right before this one changed something: a refused or repeated
 * change leaves no row.
 */
export function auditedIfChanged(deed: Deed): Statement {
  const { sql, args } = insertEntry(entryOf(deed));
  return { sql: sql.replace(/ values \((.*)\) on conflict/, " select $1 where changes() > 0 on conflict"), args };
}

export interface AuditQuery {
  readonly limit?: number;
  /** Of the last entry of the page before. */
  readonly before?: string | undefined;
}

/** A tenant's entries, newest first. */
export async function listAudit(db: StoreDb, tenantId: string, options: AuditQuery = {}): Promise<AuditEntry[]> {
  const { limit = 100, before } = options;
  const page =
    before === undefined
      ? undefined
      : sql`(${audit.createdAt}, ${audit.id}) <
            (select created_at, id from audit where id = ${before} and tenant_id = ${tenantId})`;
  return db
    .select()
    .from(audit)
    .where(and(eq(audit.tenantId, tenantId), page))
    .orderBy(desc(audit.createdAt), desc(audit.id))
    .limit(limit);
}

const insertEntry = insertInto(audit);

function entryOf({ by, action, target, detail, now }: Deed): AuditEntry {
  return {
    id: `au_${uuidv7().replaceAll("-", "")}`,
    tenantId: by.tenantId,
    actor: by.keyId === undefined ? `token:${by.jti}` : `key:${by.keyId}`,
    action,
    target,
    detail: detail ?? null,
    createdAt: now,
  };
}
