import { and, asc, eq, sql, type SQL } from "drizzle-orm";
import { wholePrompts } from "#shared/prompt-prefix.ts";
import { calls } from "#shared/tables.ts";
import type { Mode } from "#shared/words.ts";
import { versionName } from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import { insertWithText } from "./rows.ts";
import type { Statement } from "./statement.ts";
import { countCall } from "./usage.ts";

export type Call = typeof calls.$inferSelect;

/**
 * A call to record. `request` and `response` are JSON texts, written as they are: the proxy has them as text already and
 * serialising them again would be the largest cost of a record.
 */
export type CallRecord = Omit<typeof calls.$inferInsert, "request" | "response"> & {
  readonly request: string;
  readonly response: string | null;
  /** Of the rollout, for the usage counters. */
  readonly mode: Mode;
  /** What a provider's call is metered as, `openai/gpt-5-mini`; a policy's is metered as its version. */
  readonly usageModel?: string;
};

/** Recording the same call twice stores and counts it once. One unit for the writer. */
export function recordCall({ mode, usageModel, ...call }: CallRecord): Statement[] {
  const { policy, policyVersion } = call;
  return [
    countCall({
      tenantId: call.tenantId,
      callId: call.id,
      model:
        typeof policy === "string" && typeof policyVersion === "number"
          ? versionName(policy, policyVersion)
          : (usageModel ?? call.modelAsked),
      mode,
      promptTokens: call.promptTokens ?? 0,
      completionTokens: call.completionTokens ?? 0,
      createdAt: call.createdAt,
    }),
    insertCall(call),
  ];
}

/** Calls of some rollouts, by rollout, then attempt, then time; of one attempt number where given. Prompts are whole. */
export async function readCalls(
  db: StoreDb,
  tenantId: string,
  rolloutIds: readonly string[],
  options: { readonly attempt?: number } = {},
): Promise<Call[]> {
  if (rolloutIds.length === 0) return [];
  const wanted: SQL[] = [
    eq(calls.tenantId, tenantId),
    sql`${calls.rolloutId} in (select value from json_each(${JSON.stringify(rolloutIds)}))`,
  ];
  if (options.attempt !== undefined) wanted.push(eq(calls.attempt, options.attempt));
  const rows = await db
    .select()
    .from(calls)
    .where(and(...wanted))
    .orderBy(asc(calls.rolloutId), asc(calls.attempt), asc(calls.createdAt), asc(calls.id));
  const prompts = wholePrompts(rows);
  return rows.map((row) => ({ ...row, promptTokenIds: prompts.get(row.id) ?? null }));
}

const insertCall = insertWithText(calls, ["request", "response"]);
