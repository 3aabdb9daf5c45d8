import { and, asc, desc, eq } from "drizzle-orm";
import { aglModels } from "./agl-tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

/** The inference endpoints that a trainer registered, by served model name. */

export type AglModel = typeof aglModels.$inferSelect;

const insertModel = insertInto(
  aglModels,
  "(tenant_id, model, endpoint) do update set version = excluded.version, registered_at = excluded.registered_at",
);

/** Registers endpoints; one that is registered already gets the new version. */
export function registerAglModels(
  tenantId: string,
  models: readonly Pick<AglModel, "model" | "endpoint" | "version">[],
  now: number,
): Statement[] {
  return models.map((model) => insertModel({ ...model, tenantId, registeredAt: now }));
}

export function deleteAglModels(tenantId: string): Statement[] {
  return [{ sql: "delete from agl_models where tenant_id = ?", args: [tenantId] }];
}

/** The endpoints of a model by name, in order; every model's where no name is given, the newest registered model first. */
export async function readAglModels(db: StoreDb, tenantId: string, model?: string): Promise<AglModel[]> {
  return db
    .select()
    .from(aglModels)
    .where(and(eq(aglModels.tenantId, tenantId), model === undefined ? undefined : eq(aglModels.model, model)))
    .orderBy(desc(aglModels.registeredAt), asc(aglModels.model), asc(aglModels.endpoint));
}
