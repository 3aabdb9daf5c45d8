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

/**
 * Adds a call to the day's counters, unless the call is stored already: it goes before the call's insert, in one unit. The
 * calls of a commit are counted in one go: a statement for each was a third of what a commit took.
 */
export function countCall(call: CallUsage): Statement {
  const { callId, tenantId, createdAt, model, mode, promptTokens, completionTokens } = call;
  const row = [callId, tenantId, dayOf(createdAt), model, mode, promptTokens, completionTokens];
  return { sql: COUNT, args: [JSON.stringify([row])], gathers: true };
}

/** A call that is in one commit twice is one row: they are grouped by its id first. */
const COUNT = `insert into usage (tenant_id, day, model, mode, calls, prompt_tokens, completion_tokens)
  select c ->> 1, c ->> 2, c ->> 3, c ->> 4, count(*), sum(c ->> 5), sum(c ->> 6)
  from (select value as c from json_each(?) group by value ->> 0)
  where not exists (select 1 from calls where id = c ->> 0)
  group by 1, 2, 3, 4
  on conflict (tenant_id, day, model, mode) do update set calls = calls + excluded.calls,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens`;

/** Counters per day, model and mode, newest day first. @param sinceDay such as `2026-11-01`, included */
export async function readUsage(db: StoreDb, tenantId: string, sinceDay = "0000-00-00"): Promise<Usage[]> {
  return db
    .select()
    .from(usage)
    .where(and(eq(usage.tenantId, tenantId), gte(usage.day, sinceDay)))
    .orderBy(desc(usage.day), usage.model, usage.mode);
}

let lastDay = { number: -1, text: "" };

/** The UTC day of a time, `2026-11-21`. */
export function dayOf(time: number): string {
  const number = Math.floor(time / 86_400_000);
  // Every call has one, and nearly all have the same.
  if (number !== lastDay.number) lastDay = { number, text: new Date(time).toISOString().slice(0, 10) };
  return lastDay.text;
}
