import { and, asc, eq, sql } from "drizzle-orm";
import { uuidv7 } from "uuidv7";
import type { Json } from "#shared/tables.ts";
import { aglEvents } from "./agl-tables.ts";
import type { StoreDb } from "./connect.ts";
import type { Statement } from "./statement.ts";

/** What happened in an attempt, in order: posted events as they came, proxied calls by their recorded calls. */

export type AglEvent = typeof aglEvents.$inferSelect;

/** Time-ordered, so that events sort by it. */
export function newAglEventId(): string {
  return `ev_${uuidv7().replaceAll("-", "")}`;
}

export interface NewAglEvent {
  readonly id: string;
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly attemptId: string;
  readonly eventType: string;
  readonly data: Readonly<Record<string, Json>>;
  readonly callId?: string;
}

/** An event of a rollout that exists; repeating it stores it once. One row, `seq`, unless the rollout is missing. */
export function recordAglEvent(event: NewAglEvent, now: number): Statement[] {
  const { id, tenantId, rolloutId, attemptId, eventType, data, callId = null } = event;
  return [
    {
      sql: `insert into agl_events (id, tenant_id, rollout_seq, attempt_id, event_type, data, call_id, created_at)
            select ?, tenant_id, seq, ?, ?, ?, ?, ? from agl_rollouts where tenant_id = ? and id = ?
            on conflict do nothing`,
      args: [id, attemptId, eventType, JSON.stringify(data), callId, now, tenantId, rolloutId],
    },
    { sql: "select seq from agl_rollouts where tenant_id = ? and id = ?", args: [tenantId, rolloutId] },
  ];
}

/** The events of one attempt, oldest first; of one type where given. */
export async function readAglEvents(
  db: StoreDb,
  seq: number,
  attemptId: string,
  eventType?: string,
): Promise<AglEvent[]> {
  return db
    .select()
    .from(aglEvents)
    .where(
      and(
        eq(aglEvents.rolloutSeq, seq),
        eq(aglEvents.attemptId, attemptId),
        eventType === undefined ? undefined : sql`+${aglEvents.eventType} = ${eventType}`,
      ),
    )
    .orderBy(asc(aglEvents.id));
}
