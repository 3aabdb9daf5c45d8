import { and, asc, desc, eq, gt } from "drizzle-orm";
import { metrics, runs, trainSteps } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

export type Run = typeof runs.$inferSelect;
export type TrainStep = typeof trainSteps.$inferSelect;
export type NewMetric = typeof metrics.$inferInsert;
export type Metric = typeof metrics.$inferSelect;

// A field that is absent (null) keeps what is there, so that each part of a run can be told when it is known.
const upsertRun = insertInto(
  runs,
  `(id) do update set
     eval_before = coalesce(excluded.eval_before, eval_before),
     eval_after = coalesce(excluded.eval_after, eval_after),
     finished_at = coalesce(excluded.finished_at, finished_at),
     config = excluded.config
   where runs.tenant_id = excluded.tenant_id`,
);

/** A run, created or completed: evaluations and the end are filled in as they come; null leaves what is there. */
export function putRun(run: typeof runs.$inferInsert): Statement[] {
  return [upsertRun(run)];
}

/** Runs, newest first. */
export async function readRuns(db: StoreDb, tenantId: string, limit = 100): Promise<Run[]> {
  return db
    .select()
    .from(runs)
    .where(eq(runs.tenantId, tenantId))
    .orderBy(desc(runs.createdAt), desc(runs.id))
    .limit(limit);
}

export async function readRun(db: StoreDb, tenantId: string, id: string): Promise<Run | undefined> {
  return (
    await db
      .select()
      .from(runs)
      .where(and(eq(runs.tenantId, tenantId), eq(runs.id, id)))
      .limit(1)
  )[0];
}

const upsertMetric = insertInto(
  metrics,
  "(run_id, step, name) do update set value = excluded.value where metrics.tenant_id = excluded.tenant_id",
);

/** Metric points; a second value of the same run, step and name replaces the first. Another tenant's run takes none. */
export function recordMetrics(points: readonly NewMetric[]): Statement[] {
  return points.map((point) => unlessForeign(upsertMetric(point), point));
}

/** An insert of one row, which is left out where its run is another tenant's: or it would take that row's place there. */
export function unlessForeign(
  insert: Statement,
  { tenantId, runId }: { readonly tenantId: string; readonly runId: string },
): Statement {
  return {
    sql: insert.sql.replace(
      / values \((.*)\) on conflict/,
      " select $1 where not exists (select 1 from runs where id = ? and tenant_id <> ?) on conflict",
    ),
    args: [...insert.args, runId, tenantId],
  };
}

/** A run's metric points by step, then name. */
export async function readMetrics(db: StoreDb, tenantId: string, runId: string): Promise<Metric[]> {
  return db
    .select()
    .from(metrics)
    .where(and(eq(metrics.tenantId, tenantId), eq(metrics.runId, runId)))
    .orderBy(asc(metrics.step), asc(metrics.name));
}

/**
 * A run's train steps, oldest first. A step's row is written while it is published; points of its number, among them what is
 * known only afterwards, are laid over the row's metrics.
 * @param since only the steps after this one
 */
export async function readSteps(
  db: StoreDb,
  tenantId: string,
  runId: string,
  { since = -1 }: { readonly since?: number | undefined } = {},
): Promise<TrainStep[]> {
  const [steps, points] = await Promise.all([
    db
      .select()
      .from(trainSteps)
      .where(and(eq(trainSteps.tenantId, tenantId), eq(trainSteps.runId, runId), gt(trainSteps.step, since)))
      .orderBy(asc(trainSteps.step)),
    db
      .select({ step: metrics.step, name: metrics.name, value: metrics.value })
      .from(metrics)
      .where(and(eq(metrics.tenantId, tenantId), eq(metrics.runId, runId), gt(metrics.step, since))),
  ]);
  const byStep = Map.groupBy(points, ({ step }) => step);
  return steps.map((step) => ({
    ...step,
    metrics: {
      ...step.metrics,
      ...Object.fromEntries((byStep.get(step.step) ?? []).map(({ name, value }) => [name, value])),
    },
  }));
}
