import { and, asc, eq, sql } from "drizzle-orm";
import { rewards } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import { lastRow, textOf, type Statement, type Transaction } from "./statement.ts";

export type Reward = typeof rewards.$inferSelect;
export type NewReward = typeof rewards.$inferInsert;

const insertReward = insertInto(rewards);

/** Rewards, once per key: the same signal seen twice is one reward, and the first value stays. */
export function recordRewards(rows: readonly NewReward[]): Statement[] {
  return rows.map(insertReward);
}

/** One reward, once per key; reads to the id of the one that is kept under it, this one or an earlier one. */
export function recordReward(row: NewReward): Transaction<string> {
  return {
    statements: [
      insertReward(row),
      { sql: `select id from rewards where tenant_id = ? and key = ?`, args: [row.tenantId, row.key] },
    ],
    read: (rows) => {
      const kept = lastRow(rows);
      return kept === undefined ? row.id : textOf(kept, "id");
    },
  };
}

/** Rewards of some rollouts, all attempts, by rollout, then time. */
export async function readRewards(db: StoreDb, tenantId: string, rolloutIds: readonly string[]): Promise<Reward[]> {
  if (rolloutIds.length === 0) return [];
  return db
    .select()
    .from(rewards)
    .where(
      and(
        // The `+` keeps SQLite from the index of keys, which begins with the tenant.
        sql`+${rewards.tenantId} = ${tenantId}`,
        sql`${rewards.rolloutId} in (select value from json_each(${JSON.stringify(rolloutIds)}))`,
      ),
    )
    .orderBy(asc(rewards.rolloutId), asc(rewards.attempt), asc(rewards.createdAt), asc(rewards.id));
}

/** The reward under a key, to tell a repeat from a first. */
export async function readRewardByKey(db: StoreDb, tenantId: string, key: string): Promise<Reward | undefined> {
  return (
    await db
      .select()
      .from(rewards)
      .where(and(eq(rewards.tenantId, tenantId), eq(rewards.key, key)))
      .limit(1)
  )[0];
}
