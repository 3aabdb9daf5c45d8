import { and, asc, desc, eq, inArray, isNotNull, lt, sql, type SQL } from "drizzle-orm";
import { attempts, rollouts, type Json, type Outcome } from "#shared/tables.ts";
import {
  ROLLOUT_STATUSES,
  type AttemptStatus,
  type Disposition,
  type DropReason,
  type Mode,
  type RolloutStatus,
} from "#shared/words.ts";
import type { StoreDb } from "./connect.ts";
import { insertInto, rowFrom } from "./rows.ts";
import { lastRow, type Row, type Statement, type Transaction, type Value } from "./statement.ts";

/**
 * Rollouts and their attempts. Every state change is guarded by the state it leaves (and the attempt it belongs to), so
 * a late or repeated one changes nothing; `words.ts` has the table of legal changes.
 */

export type Rollout = typeof rollouts.$inferSelect;
export type Attempt = typeof attempts.$inferSelect;

export interface NewRollout {
  readonly id: string;
  readonly tenantId: string;
  readonly agent: string;
  readonly mode: Mode;
  readonly maxAttempts: number;
  readonly taskId?: string | null;
  readonly groupId?: string | null;
  readonly runId?: string | null;
  readonly pin?: string | null;
  /** The session that a live rollout is, in its agent's own words. */
  readonly sessionId?: string | null;
  /** Whose data it is, for deletion. */
  readonly subjectId?: string | null;
  /** The key that opened it. */
  readonly keyId?: string | null;
}

const insertRollout = insertInto(rollouts);
const insertAttempt = insertInto(attempts);

/** New rollouts, queued. @param now milliseconds since the epoch */
export function createRollouts(rows: readonly NewRollout[], now: number): Statement[] {
  return rows.map((row) => insertRollout({ ...row, status: "queued", createdAt: now }));
}

/**
 * A rollout that its agent starts by itself with a token: running, attempt 1, never retried.
 * @param leaseUntil when the token ends; the sweep then closes what was not finished
 */
export function startSelfRollout(row: Omit<NewRollout, "maxAttempts">, now: number, leaseUntil: number): Statement[] {
  return [
    insertRollout({
      ...row,
      maxAttempts: 1,
      status: "running",
      attempt: 1,
      leaseUntil,
      createdAt: now,
      startedAt: now,
    }),
    insertAttempt({ rolloutId: row.id, attempt: 1, tenantId: row.tenantId, status: "running", startedAt: now }),
  ];
}

export interface SessionOptions {
  readonly now: number;
  /** When the session is over unless it goes on. */
  readonly leaseUntil: number;
  /** Kept where the session has none yet. */
  readonly subjectId: string | null;
}

/**
 * Opens a live session's rollout unless it is there already; reads to the status that it then has, undefined where another
 * tenant has taken the id.
 */
export function openSession(
  row: Omit<NewRollout, "maxAttempts" | "subjectId">,
  { now, leaseUntil, subjectId }: SessionOptions,
): Transaction<RolloutStatus | undefined> {
  return {
    statements: [
      ...startSelfRollout({ ...row, subjectId }, now, leaseUntil),
      {
        sql: `update rollouts set lease_until = max(lease_until, ?), subject_id = coalesce(subject_id, ?)
              where tenant_id = ? and id = ? and status = 'running'`,
        args: [leaseUntil, subjectId, row.tenantId, row.id],
      },
      { sql: `select status from rollouts where tenant_id = ? and id = ?`, args: [row.tenantId, row.id] },
    ],
    read: (rows) => ROLLOUT_STATUSES.find((status) => status === lastRow(rows)?.["status"]),
  };
}

/** A live session whose lease has run out. */
export interface IdleSession extends AttemptRef {
  /** The text of its last answer, null where there is none. */
  readonly result: string | null;
}

/** Live sessions that are over because they fell silent, the longest silent first; of all tenants. */
export async function listIdleSessions(db: StoreDb, now: number, limit: number): Promise<IdleSession[]> {
  return db
    .select({
      tenantId: rollouts.tenantId,
      rolloutId: rollouts.id,
      attempt: rollouts.attempt,
      result: sql<
        string | null
      >`(select case json_type(calls.response, '$.content') when 'text' then calls.response ->> '$.content' end
        from calls where calls.rollout_id = rollouts.id and role <> 'judge' and response is not null order by created_at desc, id desc limit 1)`,
    })
    .from(rollouts)
    .where(and(eq(rollouts.status, "running"), isNotNull(rollouts.sessionId), lt(rollouts.leaseUntil, now)))
    .orderBy(asc(rollouts.leaseUntil))
    .limit(limit);
}

export interface LeaseOptions {
  /** All tenants where absent. */
  readonly tenantId?: string;
  readonly agent: string;
  readonly limit: number;
  readonly now: number;
  readonly leaseMs: number;
}

/** A leased rollout with its task's input (null where it has no task). */
export interface LeasedRollout {
  readonly rollout: Rollout;
  readonly input: Json;
}

/** Takes the oldest queued rollouts of an agent: status `running`, the next attempt opened, the lease set. */
export function leaseRollouts(options: LeaseOptions): Transaction<LeasedRollout[]> {
  const { tenantId, agent, limit, now, leaseMs } = options;
  const ofTenant = tenantId === undefined ? "" : " and tenant_id = ?";
  const tenantArgs: Value[] = tenantId === undefined ? [] : [tenantId];
  return {
    statements: [
      {
        sql: `update rollouts set status = 'running', attempt = attempt + 1, lease_until = ?,
                started_at = coalesce(started_at, ?), error = null
              where id in (select id from rollouts
                where status = 'queued' and not_before <= ? and agent = ?${ofTenant}
                order by created_at, id limit ?)
              returning *, (select input from tasks
                where tasks.tenant_id = rollouts.tenant_id and tasks.id = rollouts.task_id) as task_input`,
        args: [now + leaseMs, now, now, agent, ...tenantArgs, limit],
      },
      {
        sql: `insert into attempts (rollout_id, attempt, tenant_id, status, started_at)
              select id, attempt, tenant_id, 'running', ? from rollouts
              where status = 'running' and agent = ?${ofTenant}
              on conflict do nothing`,
        args: [now, agent, ...tenantArgs],
      },
    ],
    read: ([leased = []]) => leased.map((row) => ({ rollout: rowFrom(rollouts, row), input: inputOf(row) })),
  };
}

export interface AttemptRef {
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly attempt: number;
}

export function extendLease(ref: AttemptRef, leaseUntil: number): Statement[] {
  return [
    {
      sql: `update rollouts set lease_until = max(coalesce(lease_until, 0), ?)
            where tenant_id = ? and id = ? and attempt = ? and status = 'running'`,
      args: [leaseUntil, ref.tenantId, ref.rolloutId, ref.attempt],
    },
  ];
}

export interface RequeueOptions {
  readonly now: number;
  /** The next attempt waits until then. */
  readonly notBefore: number;
  readonly error: string;
  /** What the rollout is dropped for when this was its last attempt. */
  readonly dropReason: DropReason;
  readonly attemptStatus?: Exclude<AttemptStatus, "running" | "finished">;
}

/**
 * Ends a failed attempt: the rollout is queued again, or, after its last attempt, `failed` and dropped with the reason.
 * The first result set holds the rollout's new `status`, or nothing where the attempt had already ended.
 */
export function requeueRollout(ref: AttemptRef, options: RequeueOptions): Statement[] {
  const { now, notBefore, error, dropReason, attemptStatus = "failed" } = options;
  return [
    {
      sql: `update rollouts set ${RETRY_OR_FAIL}
            where tenant_id = ? and id = ? and attempt = ? and status = 'running' returning id, status`,
      args: [...retryOrFailArgs(now, notBefore, error, dropReason), ref.tenantId, ref.rolloutId, ref.attempt],
    },
    endAttempt(ref, attemptStatus, error, now),
  ];
}

/**
 * Ends every attempt whose lease has run out, as {@link requeueRollout} does, with status `timeout`.
 * Rows: the ids of those that are queued again or failed.
 * @param retryAfterMs how long the next attempt waits
 */
export function sweepExpired(now: number, retryAfterMs = 1000): Transaction<{ id: string; status: RolloutStatus }[]> {
  const error = "the attempt's lease ran out: its agent neither finished nor failed in time";
  return {
    statements: [
      // Attempts first: afterwards nothing tells which rollouts had expired.
      {
        sql: `update attempts set status = 'timeout', finished_at = ?, error = ?
              where status = 'running' and (rollout_id, attempt) in
                (select id, attempt from rollouts where ${EXPIRED})`,
        args: [now, error, now],
      },
      {
        sql: `update rollouts set ${RETRY_OR_FAIL} where ${EXPIRED} returning id, status`,
        args: [...retryOrFailArgs(now, now + retryAfterMs, error, "timeout"), now],
      },
    ],
    read: ([, swept = []]) =>
      swept.map((row) => ({ id: String(row["id"]), status: row["status"] === "queued" ? "queued" : "failed" })),
  };
}

export interface CloseOptions {
  readonly now: number;
  readonly status: "finished" | "failed";
  readonly result?: string | null;
  readonly error?: string | null;
  readonly reward?: number | null;
  readonly outcome?: Outcome | null;
  readonly disposition?: Disposition | null;
  readonly dropReason?: DropReason | null;
  readonly attemptStatus?: Exclude<AttemptStatus, "running">;
}

/**
 * Ends a rollout with the outcome of its running attempt. A second close, or one of an older attempt, changes nothing:
 * the first result set then holds no row.
 */
export function closeRollout(ref: AttemptRef, options: CloseOptions): Statement[] {
  const {
    now,
    status,
    result = null,
    error = null,
    reward = null,
    outcome = null,
    disposition = null,
    dropReason = null,
    attemptStatus = status,
  } = options;
  return [
    {
      sql: `update rollouts set status = ?, result = ?, error = ?, reward = ?, outcome = ?,
              disposition = coalesce(disposition, ?), drop_reason = coalesce(drop_reason, ?),
              lease_until = null, finished_at = ?
            where tenant_id = ? and id = ? and attempt = ? and status = 'running' returning id`,
      args: [
        status,
        result,
        error,
        reward,
        outcome === null ? null : JSON.stringify(outcome),
        disposition,
        dropReason,
        now,
        ref.tenantId,
        ref.rolloutId,
        ref.attempt,
      ],
    },
    endAttempt(ref, attemptStatus, error, now),
  ];
}

/** Ends a rollout that has not ended, whatever its attempt does; it is dropped as `cancelled`. */
export function cancelRollout(tenantId: string, id: string, now: number): Statement[] {
  return dropRollouts(tenantId, [id], { reason: "cancelled", now, onlyOpen: true });
}

export interface DropOptions {
  readonly reason: DropReason;
  readonly now: number;
  /** Leave those that have ended as they are. */
  readonly onlyOpen?: boolean;
}

/**
 * Gives rollouts without a disposition the disposition `dropped`; those still queued or running are cancelled with it.
 * The last result set holds the ids that were dropped.
 */
export function dropRollouts(tenantId: string, ids: readonly string[], options: DropOptions): Statement[] {
  const { reason, now, onlyOpen = false } = options;
  const list = JSON.stringify(ids);
  const open = onlyOpen ? " and status in ('queued', 'running')" : "";
  return [
    {
      sql: `update attempts set status = 'cancelled', finished_at = ?
            where status = 'running' and tenant_id = ? and rollout_id in (select value from json_each(?))`,
      args: [now, tenantId, list],
    },
    {
      sql: `update rollouts set disposition = 'dropped', drop_reason = ?,
              finished_at = coalesce(finished_at, ?), lease_until = null,
              status = case when status in ('queued', 'running') then 'cancelled' else status end
            where +tenant_id = ? and id in (select value from json_each(?)) and disposition is null${open}
            returning id`,
      args: [reason, now, tenantId, list],
    },
  ];
}

// Reads -----------------------------------------------------------------------------------------------------------

export async function readRollout(db: StoreDb, tenantId: string, id: string): Promise<Rollout | undefined> {
  return (
    await db
      .select()
      .from(rollouts)
      .where(and(eq(rollouts.tenantId, tenantId), eq(rollouts.id, id)))
      .limit(1)
  )[0];
}

/** The status of each of these rollouts that exists. At most 1,000 ids a question. */
export async function readStatuses(
  db: StoreDb,
  tenantId: string,
  ids: readonly string[],
): Promise<ReadonlyMap<string, RolloutStatus>> {
  const rows = await db
    .select({ id: rollouts.id, status: rollouts.status })
    .from(rollouts)
    .where(
      and(
        sql`+${rollouts.tenantId} = ${tenantId}`,
        sql`${rollouts.id} in (select value from json_each(${JSON.stringify(ids)}))`,
      ),
    );
  return new Map(rows.map((row) => [row.id, row.status]));
}

/** Several rollouts by id, in id order; at most 1,000 ids a question. */
export async function readRollouts(db: StoreDb, tenantId: string, ids: readonly string[]): Promise<Rollout[]> {
  if (ids.length === 0) return [];
  return db
    .select()
    .from(rollouts)
    .where(
      and(
        sql`+${rollouts.tenantId} = ${tenantId}`,
        sql`${rollouts.id} in (select value from json_each(${JSON.stringify(ids)}))`,
      ),
    )
    .orderBy(asc(rollouts.id));
}

export interface ListOptions {
  readonly limit?: number;
  /** Id of the last rollout of the page before. */
  readonly after?: string | undefined;
  readonly mode?: Mode | undefined;
  /** One of these. */
  readonly statuses?: readonly RolloutStatus[] | undefined;
  readonly runId?: string | undefined;
}

/** Rollouts newest first, a page at a time. */
export async function listRollouts(db: StoreDb, tenantId: string, options: ListOptions = {}): Promise<Rollout[]> {
  const { limit = 50, after, mode, statuses, runId } = options;
  const wanted: SQL[] = [eq(rollouts.tenantId, tenantId)];
  if (mode !== undefined) wanted.push(eq(rollouts.mode, mode));
  if (statuses !== undefined) wanted.push(inArray(rollouts.status, [...statuses]));
  if (runId !== undefined) wanted.push(eq(rollouts.runId, runId));
  if (after !== undefined) {
    wanted.push(
      sql`(${rollouts.createdAt}, ${rollouts.id}) < (select created_at, id from rollouts where id = ${after} and tenant_id = ${tenantId})`,
    );
  }
  return db
    .select()
    .from(rollouts)
    .where(and(...wanted))
    .orderBy(desc(rollouts.createdAt), desc(rollouts.id))
    .limit(limit);
}

export interface RolloutCount {
  readonly mode: Mode;
  readonly status: RolloutStatus;
  readonly disposition: Disposition | null;
  readonly dropReason: DropReason | null;
  readonly count: number;
}

/** How many rollouts are in which state; of one run where given. */
export async function countRollouts(
  db: StoreDb,
  tenantId: string,
  options: { readonly runId?: string; readonly mode?: Mode } = {},
): Promise<RolloutCount[]> {
  const wanted: SQL[] = [eq(rollouts.tenantId, tenantId)];
  if (options.runId !== undefined) wanted.push(eq(rollouts.runId, options.runId));
  if (options.mode !== undefined) wanted.push(eq(rollouts.mode, options.mode));
  return db
    .select({
      mode: rollouts.mode,
      status: rollouts.status,
      disposition: rollouts.disposition,
      dropReason: rollouts.dropReason,
      count: sql<number>`count(*)`,
    })
    .from(rollouts)
    .where(and(...wanted))
    .groupBy(rollouts.mode, rollouts.status, rollouts.disposition, rollouts.dropReason);
}

/** Agents that have queued work whose time has come, for the dispatcher. */
export async function listQueuedAgents(
  db: StoreDb,
  now: number,
): Promise<{ readonly tenantId: string; readonly agent: string }[]> {
  return db
    .selectDistinct({ tenantId: rollouts.tenantId, agent: rollouts.agent })
    .from(rollouts)
    .where(and(eq(rollouts.status, "queued"), sql`${rollouts.notBefore} <= ${now}`));
}

export async function readAttempts(db: StoreDb, tenantId: string, rolloutIds: readonly string[]): Promise<Attempt[]> {
  if (rolloutIds.length === 0) return [];
  return db
    .select()
    .from(attempts)
    .where(and(eq(attempts.tenantId, tenantId), inArray(attempts.rolloutId, [...rolloutIds])))
    .orderBy(asc(attempts.rolloutId), asc(attempts.attempt));
}

// ------------------------------------------------------------------------------------------------------------------

// A `+` before a column keeps SQLite from choosing that column's index, where ids lead there directly.

/** A live session whose lease has run out has not failed: it is over (listIdleSessions). */
const EXPIRED = `status = 'running' and lease_until < ? and session_id is null`;

const RETRY_OR_FAIL = `status = case when attempt < max_attempts then 'queued' else 'failed' end,
  not_before = ?, lease_until = null, error = ?,
  finished_at = case when attempt < max_attempts then null else ? end,
  disposition = case when attempt < max_attempts then disposition else coalesce(disposition, 'dropped') end,
  drop_reason = case when attempt < max_attempts then drop_reason else coalesce(drop_reason, ?) end`;

function retryOrFailArgs(now: number, notBefore: number, error: string, dropReason: DropReason): Value[] {
  return [notBefore, error, now, dropReason];
}

function endAttempt(ref: AttemptRef, status: AttemptStatus, error: string | null, now: number): Statement {
  return {
    sql: `update attempts set status = ?, finished_at = ?, error = ?
          where tenant_id = ? and rollout_id = ? and attempt = ? and status = 'running'`,
    args: [status, now, error, ref.tenantId, ref.rolloutId, ref.attempt],
  };
}

function inputOf(row: Row): Json {
  const text = row["task_input"];
  return typeof text === "string" ? (JSON.parse(text) as Json) : null;
}
