import { sql } from "drizzle-orm";
import { z } from "zod";
import type { StoreDb } from "./connect.ts";
import type { Statement } from "./statement.ts";

const exportableCall = z.object({
  row_id: z.number(),
  id: z.string(),
  rollout_id: z.string(),
  attempt: z.number(),
  role: z.string(),
  dialect: z.string(),
  model_asked: z.string(),
  provider: z.string().nullable(),
  policy: z.string().nullable(),
  policy_version: z.number().nullable(),
  model_answered: z.string().nullable(),
  prompt_tokens: z.number(),
  completion_tokens: z.number(),
  temperature: z.number().nullable(),
  finish_reason: z.string().nullable(),
  http_status: z.number(),
  error: z.string().nullable(),
  latency_ms: z.number(),
  created_at: z.number(),
  agent: z.string(),
  session_id: z.string().nullable(),
});
/** What an exported call tells; no content. */
export type ExportableCall = z.infer<typeof exportableCall>;

/** The next calls that were not exported yet, in the order in which they were committed (one writer: no gaps). */
export async function readExportable(db: StoreDb, tenantId: string, limit: number): Promise<ExportableCall[]> {
  const rows = await db.all(sql`
    select c.rowid as row_id, c.id, c.rollout_id, c.attempt, c.role, c.dialect, c.model_asked, c.provider, c.policy,
      c.policy_version, c.model_answered, c.prompt_tokens, c.completion_tokens, c.temperature, c.finish_reason,
      c.http_status, c.error, c.latency_ms, c.created_at, r.agent, r.session_id
    from calls c join rollouts r on r.id = c.rollout_id
    where c.rowid > coalesce((select cursor from otlp_exports where tenant_id = ${tenantId}), 0)
      and +c.tenant_id = ${tenantId}
    order by c.rowid limit ${limit}`);
  return exportableCall.array().parse(rows);
}

export interface ExportCursor {
  readonly tenantId: string;
  /** Where absent, the cursor stays. */
  readonly cursor: number | undefined;
  readonly error: string | null;
  readonly now: number;
}

/** Notes how an export went. Repeatable: a cursor never goes back. */
export function moveExportCursor({ tenantId, cursor, error, now }: ExportCursor): Statement[] {
  return [
    {
      sql: `insert into otlp_exports (tenant_id, cursor, error, updated_at) values (?, ?, ?, ?)
        on conflict (tenant_id) do update set cursor = max(cursor, excluded.cursor), error = excluded.error,
          updated_at = excluded.updated_at`,
      args: [tenantId, cursor ?? 0, error?.slice(0, 500) ?? null, now],
    },
  ];
}

const collectorRow = z.object({ tenant_id: z.string(), url: z.string(), key_env: z.string().nullable() });

/** The tenants that export, and where to. */
export async function readCollectors(
  db: StoreDb,
): Promise<{ tenantId: string; url: string; keyEnv: string | undefined }[]> {
  const rows = await db.all(sql`
    select id as tenant_id, settings ->> '$.otlp_export.url' as url, settings ->> '$.otlp_export.key_env' as key_env
    from tenants where settings ->> '$.otlp_export.url' is not null`);
  return collectorRow
    .array()
    .parse(rows)
    .map(({ tenant_id: tenantId, url, key_env: keyEnv }) => ({ tenantId, url, keyEnv: keyEnv ?? undefined }));
}
