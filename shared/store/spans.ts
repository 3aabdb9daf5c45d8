import { and, asc, eq, sql } from "drizzle-orm";
import { z } from "zod";
import { spans } from "#shared/tables.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto } from "./rows.ts";
import type { Statement } from "./statement.ts";

export type Span = typeof spans.$inferSelect;
export type NewSpan = typeof spans.$inferInsert;

const insertSpan = insertInto(spans);

/** Spans, once per id: exporters repeat what they got no answer to. */
export function recordSpans(rows: readonly NewSpan[]): Statement[] {
  return rows.map(insertSpan);
}

/** Spans of a rollout, all attempts, by time. */
export async function readSpans(db: StoreDb, tenantId: string, rolloutId: string): Promise<Span[]> {
  return db
    .select()
    .from(spans)
    .where(and(eq(spans.tenantId, tenantId), eq(spans.rolloutId, rolloutId)))
    .orderBy(asc(spans.startedAt), asc(spans.id));
}

/** Where telemetry belongs: a rollout's running (or last) attempt. */
export interface Place {
  readonly rolloutId: string;
  readonly attempt: number;
  readonly agent: string;
}

/** What spans say of where they belong; ids that are not the tenant's lead nowhere. */
export interface PlaceHints {
  readonly rolloutIds: readonly string[];
  readonly callIds: readonly string[];
  readonly sessionIds: readonly string[];
}

export interface Places {
  readonly byRollout: ReadonlyMap<string, Place>;
  readonly byCall: ReadonlyMap<string, Place>;
  readonly bySession: ReadonlyMap<string, Place>;
}

const placeRow = z.object({ key: z.string(), rollout_id: z.string(), attempt: z.number(), agent: z.string() });

/** The places that the hints lead to, within the tenant. */
export async function readPlaces(db: StoreDb, tenantId: string, hints: PlaceHints): Promise<Places> {
  const rollout = sql`r.id as rollout_id, r.attempt, r.agent`;
  const [byRollout, byCall, bySession] = await Promise.all([
    placesOf(
      db,
      hints.rolloutIds,
      (ids) => sql`select r.id as key, ${rollout} from json_each(${ids}) h
        cross join rollouts r on r.id = h.value and r.tenant_id = ${tenantId}`,
    ),
    placesOf(
      db,
      hints.callIds,
      (ids) => sql`select c.id as key, r.id as rollout_id, c.attempt, r.agent from json_each(${ids}) h
        cross join calls c on c.id = h.value and c.tenant_id = ${tenantId}
        join rollouts r on r.id = c.rollout_id`,
    ),
    // Sessions have no index of their own: only the newest rollouts of the tenant are looked through.
    placesOf(
      db,
      hints.sessionIds,
      (ids) => sql`select r.session_id as key, ${rollout} from
        (select * from rollouts where tenant_id = ${tenantId} order by created_at desc limit 5000) r
        where r.session_id in (select value from json_each(${ids}))`,
    ),
  ]);
  return { byRollout, byCall, bySession };
}

async function placesOf(
  db: StoreDb,
  keys: readonly string[],
  query: (keys: string) => ReturnType<typeof sql>,
): Promise<ReadonlyMap<string, Place>> {
  if (keys.length === 0) return new Map();
  const rows = placeRow.array().parse(await db.all(query(JSON.stringify(keys))));
  return new Map(rows.map(({ key, rollout_id: rolloutId, attempt, agent }) => [key, { rolloutId, attempt, agent }]));
}
