import { and, desc, eq, gte } from "drizzle-orm";
import { usage } from "#shared/tables.ts";
import type { Mode } from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import type { Statement } from "./statement.ts";

export type Usage = typeof usage.$inferSelect;

export interface CallUsage {
  readonly tenantId: string;
  readonly callId: string;
  readonly model: string;
  readonly mode: Mode;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly createdAt: number;
}

/** Adds a call to the day's counters, unless the call is stored already: it goes before the call's insert, in one unit. */
export function countCall(call: CallUsage): Statement {
  return {
    sql: `insert into usage (tenant_id, day, model, mode, calls, prompt_tokens, completion_tokens)
          select ?, ?, ?, ?, 1, ?, ? where not exists (select 1 from calls where id = ?)
          on conflict (tenant_id, day, model, mode) do update set calls = calls + 1,
            prompt_tokens = prompt_tokens + excluded.prompt_tokens,
            completion_tokens = completion_tokens + excluded.completion_tokens`,
    args: [
      call.tenantId,
      dayOf(call.createdAt),
      call.model,
      call.mode,
      call.promptTokens,
      call.completionTokens,
      call.callId,
    ],
  };
}

/** Counters per day, model and mode, newest day first. @param sinceDay such as `2026-11-01`, included */
export async function readUsage(db: StoreDb, tenantId: string, sinceDay = "0000-00-00"): Promise<Usage[]> {
  return db
    .select()
    .from(usage)
    .where(and(eq(usage.tenantId, tenantId), gte(usage.day, sinceDay)))
    .orderBy(desc(usage.day), usage.model, usage.mode);
}

/** The UTC day of a time, `2026-11-21`. */
export function dayOf(time: number): string {
  return new Date(time).toISOString().slice(0, 10);
}
