import { eq, sql } from "drizzle-orm";
import { tenants, type TenantSettings } from "#shared/tables.ts";
import type { TenantPatch } from "#shared/wire-tenant.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

export type Tenant = typeof tenants.$inferSelect;

const upsertTenant = insertInto(tenants, "(id) do update set name = excluded.name, settings = excluded.settings");

/** Creates a tenant or changes its name and settings. */
export function putTenant(tenant: typeof tenants.$inferInsert): Statement[] {
  return [upsertTenant(tenant)];
}

export async function readTenant(db: StoreDb, id: string): Promise<Tenant | undefined> {
  return (await db.select().from(tenants).where(eq(tenants.id, id)).limit(1))[0];
}

/** Changes what the patch names: in one statement, so that two patches at once both hold. */
export function patchTenant(id: string, patch: TenantPatch): Statement[] {
  return [
    { sql: "update tenants set settings = json_patch(settings, ?) where id = ?", args: [JSON.stringify(patch), id] },
  ];
}

export async function readTenantSettings(db: StoreDb, id: string): Promise<TenantSettings | undefined> {
  return (await readTenant(db, id))?.settings;
}

/** All tenants that the database has anything of. */
export async function listTenants(db: StoreDb): Promise<string[]> {
  // Each has an index that begins with the tenant, and whatever else a tenant may have, it has one of these. A row of
  // settings for the default tenant is in every database: a migration makes it.
  const rows = await db.all<{ id: string }>(sql`
    select id from tenants where id <> 'default' union select tenant_id from policies union select tenant_id from tasks
    union select tenant_id from rollouts union select tenant_id from agents union select tenant_id from keys
    union select tenant_id from audit union select tenant_id from agl_rollouts union select tenant_id from usage
    order by 1`);
  return rows.map(({ id }) => id);
}
