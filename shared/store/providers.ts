import { asc, eq } from "drizzle-orm";
import { providers } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

/** Frozen upstreams of a tenant. */
export type StoredProvider = typeof providers.$inferSelect;

const upsert = insertInto(
  providers,
  `(tenant_id, name) do update set base_url = excluded.base_url, key_env = excluded.key_env,
   key_sealed = excluded.key_sealed, updated_at = excluded.updated_at`,
);

/** Sets a provider up, or anew: a key that is not given again is gone, since it was sealed for the address before. */
export function putProvider(provider: StoredProvider): Statement[] {
  return [upsert(provider)];
}

export function deleteProvider(tenantId: string, name: string): Statement {
  return { sql: `delete from providers where tenant_id = ? and name = ? returning name`, args: [tenantId, name] };
}

/** A tenant's providers by name. */
export async function listProviders(db: StoreDb, tenantId: string): Promise<StoredProvider[]> {
  return db.select().from(providers).where(eq(providers.tenantId, tenantId)).orderBy(asc(providers.name));
}
