import { eq } from "drizzle-orm";
import { tenants } from "#shared/tables.ts";
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
