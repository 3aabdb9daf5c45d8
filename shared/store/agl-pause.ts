import { numberOf, type Row, type Statement, type Transaction } from "./statement.ts";

/**
 * The switch that stops new proxied calls while weights change, and the count of those under way. Both are in the store,
 * because calls and the trainer's requests may come to different isolates: a call first puts itself under way unless its
 * tenant is paused, so whoever pauses afterwards counts it.
 */

export interface AglPauseState {
  readonly paused: boolean;
  readonly retryAfterSeconds: number;
  readonly reason: string | null;
  /** Calls under way. */
  readonly inflight: number;
}

/** What paused calls are told where nobody has said anything else. */
export const DEFAULT_RETRY_AFTER_SECONDS = 5;

export function pauseAgl(
  tenantId: string,
  { retryAfterSeconds, reason }: { readonly retryAfterSeconds: number; readonly reason: string | null },
  now: number,
): Transaction<AglPauseState> {
  return {
    statements: [
      {
        sql: `insert into agl_pauses (tenant_id, paused, retry_after_seconds, reason, updated_at) values (?, 1, ?, ?, ?)
              on conflict (tenant_id) do update set paused = 1, retry_after_seconds = excluded.retry_after_seconds,
                reason = excluded.reason, updated_at = excluded.updated_at`,
        args: [tenantId, retryAfterSeconds, reason, now],
      },
      ...aglPauseState(tenantId, now).statements,
    ],
    read: aglPauseState(tenantId, now).read,
  };
}

/** Ends the pause; how long calls are to wait is kept. */
export function resumeAgl(tenantId: string, now: number): Transaction<AglPauseState> {
  return {
    statements: [
      {
        sql: "update agl_pauses set paused = 0, reason = null, updated_at = ? where tenant_id = ?",
        args: [now, tenantId],
      },
      ...aglPauseState(tenantId, now).statements,
    ],
    read: aglPauseState(tenantId, now).read,
  };
}

/** The state, read after everything that was written before; forgets calls that crashed. */
export function aglPauseState(tenantId: string, now: number): Transaction<AglPauseState> {
  return {
    statements: [
      {
        sql: `select coalesce(max(paused), 0) as paused,
                coalesce(max(retry_after_seconds), ${DEFAULT_RETRY_AFTER_SECONDS}) as retry_after_seconds,
                max(reason) as reason,
                (select count(*) from agl_inflight where tenant_id = ? and expires_at > ?) as inflight
              from agl_pauses where tenant_id = ?`,
        args: [tenantId, now, tenantId],
      },
    ],
    read: (results) => stateOf(results.at(-1)?.[0]),
  };
}

function stateOf(row: Row | undefined): AglPauseState {
  if (row === undefined) {
    return { paused: false, retryAfterSeconds: DEFAULT_RETRY_AFTER_SECONDS, reason: null, inflight: 0 };
  }
  const reason = row["reason"];
  return {
    paused: numberOf(row, "paused") !== 0,
    retryAfterSeconds: numberOf(row, "retry_after_seconds"),
    reason: typeof reason === "string" ? reason : null,
    inflight: numberOf(row, "inflight"),
  };
}

export interface AglCallSeat {
  readonly tenantId: string;
  readonly callId: string;
  /** When a call that was never ended no longer counts. */
  readonly expiresAt: number;
}

/** Puts a call under way unless its tenant is paused; reads to the state, which says whether it may go on. */
export function enterAgl({ tenantId, callId, expiresAt }: AglCallSeat, now: number): Transaction<AglPauseState> {
  return {
    statements: [
      { sql: "delete from agl_inflight where tenant_id = ? and expires_at <= ?", args: [tenantId, now] },
      {
        sql: `insert into agl_inflight (call_id, tenant_id, expires_at)
              select ?, ?, ? where not exists (select 1 from agl_pauses where tenant_id = ? and paused = 1)
              on conflict do nothing`,
        args: [callId, tenantId, expiresAt, tenantId],
      },
      ...aglPauseState(tenantId, now).statements,
    ],
    read: aglPauseState(tenantId, now).read,
  };
}

/** The call is still under way. */
export function stayAgl({ callId, expiresAt }: Omit<AglCallSeat, "tenantId">): Statement {
  return {
    sql: "update agl_inflight set expires_at = max(expires_at, ?) where call_id = ?",
    args: [expiresAt, callId],
  };
}

/** The call is over; belongs into the unit that records it. */
export function leaveAgl(callId: string): Statement {
  return { sql: "delete from agl_inflight where call_id = ?", args: [callId] };
}
