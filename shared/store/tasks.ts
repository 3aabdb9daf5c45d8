import { and, asc, eq, inArray } from "drizzle-orm";
import { tasks } from "#shared/tables.ts";
import type { Split } from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

export type Task = typeof tasks.$inferSelect;
export type NewTask = typeof tasks.$inferInsert;

const insertTask = insertInto(tasks);

/** A task's id is the tenant's own; the same id again keeps the first input. */
export function createTasks(rows: readonly NewTask[]): Statement[] {
  return rows.map(insertTask);
}

export async function readTask(db: StoreDb, tenantId: string, id: string): Promise<Task | undefined> {
  return (
    await db
      .select()
      .from(tasks)
      .where(and(eq(tasks.tenantId, tenantId), eq(tasks.id, id)))
      .limit(1)
  )[0];
}

/** Ids of an agent's tasks of one split, in id order. */
export async function listTaskIds(db: StoreDb, tenantId: string, agent: string, split: Split): Promise<string[]> {
  const rows = await db
    .select({ id: tasks.id })
    .from(tasks)
    .where(and(eq(tasks.tenantId, tenantId), eq(tasks.agent, agent), eq(tasks.split, split)))
    .orderBy(asc(tasks.id));
  return rows.map((row) => row.id);
}

/** Which of these task ids exist. At most 1,000 ids a question. */
export async function existingTaskIds(db: StoreDb, tenantId: string, ids: readonly string[]): Promise<Set<string>> {
  const rows = await db
    .select({ id: tasks.id })
    .from(tasks)
    .where(and(eq(tasks.tenantId, tenantId), inArray(tasks.id, [...ids])));
  return new Set(rows.map((row) => row.id));
}
