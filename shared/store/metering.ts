import { sql, type SQL } from "drizzle-orm";
import { z } from "zod";
import { prices } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

/**
 * What was used and what it cost. Tokens are counted with each call's commit (usage.ts); prices are joined when somebody
 * asks, so a corrected price list corrects the past. A price holds for whole UTC days.
 */

export type Price = typeof prices.$inferSelect;

const upsertPrice = insertInto(
  prices,
  "(tenant_id, model, valid_from) do update set prompt_per_million = excluded.prompt_per_million, completion_per_million = excluded.completion_per_million",
);

/** A model's price from a day on; earlier days keep theirs. */
export function putPrice(price: Price): Statement[] {
  return [upsertPrice(price)];
}

const priceRow = z.object({
  model: z.string(),
  valid_from: z.number(),
  prompt_per_million: z.number(),
  completion_per_million: z.number(),
});
export type PriceRow = z.infer<typeof priceRow>;

/** The price list with its history, by model, newest first. */
export async function listPrices(db: StoreDb, tenantId: string): Promise<PriceRow[]> {
  return priceRow.array().parse(
    await db.all(sql`
      select model, valid_from, prompt_per_million, completion_per_million
      from prices where tenant_id = ${tenantId} order by model, valid_from desc`),
  );
}

interface Tokens {
  /** What the model may be called in the price list; the first that is there counts, and `*` after all. */
  readonly names: readonly SQL[];
  readonly time: SQL;
  readonly prompt: SQL;
  readonly completion: SQL;
}

/** Cost of some tokens at the price of their day; null where the list has none. */
function costOf({ names, time, prompt, completion }: Tokens): SQL {
  // One question a name: SQLite lets a subquery's ORDER BY see no column of the query around it.
  const costs = [...names, sql`'*'`].map(
    (name) => sql`(select (${prompt} * p.prompt_per_million + ${completion} * p.completion_per_million) / 1e6
      from prices p where p.tenant_id = x.tenant_id and p.model = ${name} and p.valid_from <= ${time}
      order by p.valid_from desc limit 1)`,
  );
  return sql`coalesce(${sql.join(costs, sql`, `)})`;
}

const usageCost = costOf({
  // The very version, else its policy: `flight@13`, `flight`.
  names: [sql`x.model`, sql`substr(x.model, 1, instr(x.model, '@') - 1)`],
  time: sql`unixepoch(x.day) * 1000`,
  prompt: sql`x.prompt_tokens`,
  completion: sql`x.completion_tokens`,
});

const usageRow = z.object({
  day: z.string(),
  model: z.string(),
  mode: z.string(),
  calls: z.number(),
  prompt_tokens: z.number(),
  completion_tokens: z.number(),
  cost: z.number().nullable(),
});
export type UsageRow = z.infer<typeof usageRow>;

/** Calls, tokens and cost per day, model and mode, newest day first. @param sinceDay such as `2026-11-01`, included */
export async function readCosts(db: StoreDb, tenantId: string, sinceDay: string): Promise<UsageRow[]> {
  return usageRow.array().parse(
    await db.all(sql`
      select x.day, x.model, x.mode, x.calls, x.prompt_tokens, x.completion_tokens, ${usageCost} as cost
      from usage x where x.tenant_id = ${tenantId} and x.day >= ${sinceDay}
      order by x.day desc, x.model, x.mode`),
  );
}

/** What a tenant has spent since a day, in its price list's currency; calls without a price count nothing. */
export async function readSpent(db: StoreDb, tenantId: string, sinceDay: string): Promise<number> {
  const { spent } = z.object({ spent: z.number() }).parse(
    await db.get(sql`
        select coalesce(sum(${usageCost}), 0) as spent
        from usage x where x.tenant_id = ${tenantId} and x.day >= ${sinceDay}`),
  );
  return spent;
}

const agentRow = z.object({
  agent: z.string(),
  mode: z.string(),
  invocations: z.number(),
  wall_ms: z.number(),
});
export type AgentUsage = z.infer<typeof agentRow>;

/** How often agents were run, and how long, per agent and mode; attempts that still run count without their time. */
export async function readInvocations(db: StoreDb, tenantId: string, since: number): Promise<AgentUsage[]> {
  return agentRow.array().parse(
    await db.all(sql`
      select r.agent, r.mode, count(*) as invocations,
        coalesce(sum(a.finished_at - a.started_at), 0) as wall_ms
      from rollouts r join attempts a on a.rollout_id = r.id
      where r.tenant_id = ${tenantId} and r.created_at >= ${since}
      group by r.agent, r.mode order by r.agent, r.mode`),
  );
}

const rolloutRow = z.object({
  rollout_id: z.string(),
  agent: z.string(),
  mode: z.string(),
  calls: z.number(),
  prompt_tokens: z.number(),
  completion_tokens: z.number(),
  cost: z.number().nullable(),
});
export type RolloutUsage = z.infer<typeof rolloutRow>;

/** Calls, tokens and cost of the newest rollouts. */
export async function readRolloutCosts(db: StoreDb, tenantId: string, limit: number): Promise<RolloutUsage[]> {
  const cost = costOf({
    // A call keeps what its provider answered as and what its agent asked for, but not the name that was asked between them.
    names: [
      sql`(x.policy || '@' || x.policy_version)`,
      sql`x.policy`,
      sql`(x.provider || '/' || x.model_answered)`,
      sql`(x.provider || '/' || x.model_asked)`,
    ],
    time: sql`x.created_at - x.created_at % 86400000`,
    prompt: sql`x.prompt_tokens`,
    completion: sql`x.completion_tokens`,
  });
  return rolloutRow.array().parse(
    await db.all(sql`
      select r.id as rollout_id, r.agent, r.mode, count(x.id) as calls,
        coalesce(sum(x.prompt_tokens), 0) as prompt_tokens, coalesce(sum(x.completion_tokens), 0) as completion_tokens,
        sum(${cost}) as cost
      from (select * from rollouts where tenant_id = ${tenantId} order by created_at desc, id desc limit ${limit}) r
      left join calls x on x.rollout_id = r.id
      group by r.id order by r.created_at desc, r.id desc`),
  );
}
