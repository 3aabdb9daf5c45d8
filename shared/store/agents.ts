import { asc, eq } from "drizzle-orm";
import type { AgentSettingsInput } from "#shared/agent-settings.ts";
import { agents } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

/** Agents that were set up at run time; settings are kept as they were written. */
export type StoredAgent = typeof agents.$inferSelect;

const upsert = insertInto(
  agents,
  "(tenant_id, name) do update set settings = excluded.settings, updated_at = excluded.updated_at",
);
// One statement, so that two mappings made at once are both kept.
const upsertModels = insertInto(
  agents,
  `(tenant_id, name) do update set updated_at = excluded.updated_at,
   settings = json_patch(settings, excluded.settings)`,
);

/** Sets an agent up, or anew. */
export function putAgent(agent: StoredAgent): Statement[] {
  return [upsert(agent)];
}

/** Maps some of an agent's model names and leaves the rest of its settings as they are; the agent is made where there is none. */
export function mapModels(
  agent: Omit<StoredAgent, "settings">,
  models: NonNullable<AgentSettingsInput["models"]>,
): Statement[] {
  return [upsertModels({ ...agent, settings: { models } })];
}

export function deleteAgent(tenantId: string, name: string): Statement {
  return { sql: `delete from agents where tenant_id = ? and name = ? returning name`, args: [tenantId, name] };
}

/** A tenant's agents by name. */
export async function listAgents(db: StoreDb, tenantId: string): Promise<StoredAgent[]> {
  return db.select().from(agents).where(eq(agents.tenantId, tenantId)).orderBy(asc(agents.name));
}

/** Every tenant's agents, for the dispatcher. */
export async function listAllAgents(db: StoreDb): Promise<StoredAgent[]> {
  return db.select().from(agents).orderBy(asc(agents.tenantId), asc(agents.name));
}
