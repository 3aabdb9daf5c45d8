import { sql } from "drizzle-orm";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import { rolloutJti } from "#shared/store/tokens.ts";
import type { Principal, RolloutClaims } from "#shared/tokens.ts";
import { budget, type Budget, type BudgetRequest, type Reservation } from "../budget.ts";
import { RetryLaterError } from "../http-errors.ts";
import type { GatheringWriter } from "../record/gather.ts";
import { writerError } from "../record/writer-client.ts";
import { oneAsker } from "../one-asker.ts";
import { TtlCache } from "../ttl-cache.ts";

/**
 * Whether a call may begin: its rollout is open, its token is not revoked, neither its rollout's caps nor its tenant's
 * budget are spent, and its record can be stored. What the store says is remembered for a second, and asked again before
 * that in one question about all rollouts that called lately, so that hardly a call waits for it; what a rollout has spent is
 * counted once and then kept here, so a rollout whose calls come through several isolates may overshoot its caps by what
 * the others did since.
 */
export interface Admission {
  admit(request: AdmissionRequest): Promise<Seat>;
  /** The tenants' money, for calls that have no rollout of ours. */
  readonly budget: Budget;
  /** Forgets a rollout that has just ended in this isolate. */
  forget(rolloutId: string): void;
}

export interface AdmissionRequest {
  readonly principal: Principal;
  readonly rollout: RolloutClaims;
  readonly db: () => StoreDb;
  /** Where it gathers appends, it says when they are too far behind for a new call to begin. */
  readonly writer: StoreWriter & Partial<Pick<GatheringWriter, "isBehind">>;
  /** Asked only where the tenant has a budget. */
  readonly most: () => MostOfCall;
  readonly now: number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

/** The most that a call may take, and of which model. */
export type MostOfCall = Pick<BudgetRequest, "model" | "promptTokens" | "completionTokens">;

/** An admitted call. */
export interface Seat {
  /** Whether the tenant lets live calls be answered although they cannot be recorded. */
  readonly failOpen: boolean;
  /** To be called once, with the tokens that the call took. */
  leave(tokens: { readonly prompt: number; readonly completion: number }): void;
}

interface RolloutState {
  readonly status: string;
  readonly attempt: number;
  /** The token that `revoked` is about. */
  readonly jti: string;
  readonly revoked: boolean;
  readonly failOpen: boolean;
  readonly monthlyBudget: number | undefined;
  readonly spent: Spent;
  readonly readAt: number;
  /** Whether the last look failed: until one beside the calls succeeds, no live call waits for another. */
  readonly unread?: true;
}

/** What an attempt has used; goes on from one look at the store to the next. */
interface Spent {
  calls: number;
  tokens: number;
}

const FRESH_MS = 1000;
/** How often rollouts that are calling are looked at again beside their calls. */
const REFRESH_MS = 500;
/** Past its last call by this much, a rollout is not looked at any more: between two calls an agent waits for its tools. */
const CALLING_MS = 10_000;
/** Those that called last; one question must not grow without bound. */
const MOST_REFRESHED = 1000;
/** Older than fresh, a state serves live calls while the store is away. */
const KEPT_MS = 600_000;

export function admission(): Admission {
  const states = new TtlCache<RolloutState>({ ttlMs: KEPT_MS });
  /** The rollout that called longest ago comes first. */
  const calling = new Map<string, Calling>();
  let refreshedAt = 0;
  let store: { readonly up: boolean; readonly askedAt: number } = { up: true, askedAt: 0 };
  const money = budget();
  const one = oneAsker();

  async function storeIsUp({ writer, now }: AdmissionRequest): Promise<boolean> {
    if (now - store.askedAt < FRESH_MS) return store.up;
    // Noted before it is asked: the calls that come meanwhile go by the answer before.
    store = { up: store.up, askedAt: now };
    try {
      const { storeUp: up } = await writer.status();
      store = { up, askedAt: now };
      return up;
    } catch (cause) {
      throw storeAway(cause);
    }
  }

  async function stateOf(request: AdmissionRequest, key: string): Promise<RolloutState> {
    const { principal, rollout, now } = request;
    const known = (): RolloutState | undefined => states.get(key, now);
    try {
      return await one.ask(`${key}/${principal.jti}`, {
        known() {
          const state = known();
          if (state?.unread === true && rollout.mode === "live") return state;
          return state !== undefined && now - state.readAt < FRESH_MS && state.jti === principal.jti
            ? state
            : undefined;
        },
        ask: () => look(request, key),
        now,
      });
    } catch (cause) {
      if (cause instanceof FulgurError) throw cause;
      const state = known();
      if (rollout.mode !== "live" || state === undefined) throw storeAway(cause);
      states.set(key, { ...state, unread: true }, now, state.readAt + KEPT_MS);
      return state;
    }
  }

  async function look(request: AdmissionRequest, key: string): Promise<RolloutState> {
    const { rollout, db, now } = request;
    const known = states.get(key, now);
    const read = await readState(db(), request, known?.attempt === rollout.attempt ? known.spent : undefined);
    if (read === undefined) throw new FulgurError("ERR_FORBIDDEN", `rollout ${key} does not exist`);
    // Another call of the rollout may have read it meanwhile and have begun to spend.
    const other = states.get(key, now);
    const state = other?.attempt === read.attempt ? { ...read, spent: other.spent } : read;
    states.set(key, state, now);
    return state;
  }

  /** Looks again at the rollouts that called lately. */
  async function refresh({ db, now }: AdmissionRequest): Promise<void> {
    for (const [key, { calledAt }] of calling) {
      if (now - calledAt < CALLING_MS) break;
      calling.delete(key);
    }
    const asked = [...calling].slice(-MOST_REFRESHED);
    const found = await readStates(
      db(),
      asked.map(([, rollout]) => rollout),
    );
    for (const [key, { jti }] of asked) {
      const known = states.get(key, now);
      // Forgotten, or read again, since the question was asked.
      if (known === undefined || known.jti !== jti || known.readAt > now) continue;
      const read = found.get(key);
      // Another attempt has a budget of its own to be counted.
      const { unread: _unread, ...kept } = known;
      if (read?.attempt === known.attempt) states.set(key, { ...kept, ...read, readAt: now }, now);
      else states.delete(key);
    }
  }

  async function reserve(request: AdmissionRequest, state: RolloutState): Promise<Reservation | undefined> {
    const { monthlyBudget: monthly } = state;
    if (monthly === undefined) return undefined;
    const { principal, most, db, now, later } = request;
    try {
      return await money.reserve({ ...most(), tenantId: principal.tenantId, monthly, db, now, later });
    } catch (cause) {
      throw cause instanceof FulgurError ? cause : storeAway(cause);
    }
  }

  function noteCall(request: AdmissionRequest, key: string): void {
    const { principal, rollout, now } = request;
    if (now - refreshedAt >= REFRESH_MS) {
      refreshedAt = now;
      // Where it fails, states grow old and the calls themselves ask.
      if (calling.size > 0) request.later(refresh(request).catch(() => undefined));
    }
    const { rolloutId: id } = rollout;
    calling.delete(key);
    calling.set(key, {
      calledAt: now,
      id,
      tenant: principal.tenantId,
      jti: principal.jti,
      rollout_jti: rolloutJti(id),
    });
  }

  return {
    async admit(request) {
      const { rollout } = request;
      const key = rollout.rolloutId;
      // First of all: to refuse must cost little, or it helps nobody.
      if (request.writer.isBehind?.() === true) throw tooBusy();
      noteCall(request, key);
      const [state, up] = await Promise.all([
        stateOf(request, key),
        rollout.mode === "live" ? true : storeIsUp(request),
      ]);
      // Before inference is spent on an answer that could not be trained on.
      if (!up) throw storeAway();
      if (state.revoked) throw new FulgurError("ERR_AUTH", "the token was revoked; ask for a fresh one");
      if (state.status !== "running" || state.attempt !== rollout.attempt) {
        const what = state.status === "running" ? `is at attempt ${state.attempt}` : `is ${state.status}`;
        throw new FulgurError(
          "ERR_FORBIDDEN",
          `rollout ${rollout.rolloutId} ${what}, so attempt ${rollout.attempt} takes no more calls`,
        );
      }
      const { maxCalls, maxTokens } = rollout.caps;
      const { spent } = state;
      if (spent.calls >= maxCalls || spent.tokens >= maxTokens) {
        throw new FulgurError(
          "ERR_FORBIDDEN",
          `rollout ${rollout.rolloutId} has spent its budget (${spent.calls} of ${maxCalls} calls, ${spent.tokens} of ${maxTokens} tokens); ask for a token with larger caps`,
        );
      }
      // Counted before anything is waited for, so that calls at once cannot pass the cap together.
      spent.calls++;
      const reservation = await reserve(request, state).catch((thrown: unknown) => {
        spent.calls--;
        throw thrown;
      });
      return {
        failOpen: state.failOpen,
        leave({ prompt, completion }) {
          spent.tokens += prompt + completion;
          reservation?.settle(prompt, completion);
        },
      };
    },
    budget: money,
    forget(rolloutId) {
      states.delete(rolloutId);
      calling.delete(rolloutId);
    },
  };
}

/** What new train and val calls are told while libSQL is away, and any call that could not be recorded. */
export function storeAway(cause?: unknown): RetryLaterError {
  const error = writerError(cause);
  if (error instanceof FulgurError && error.code === "ERR_DISK") {
    const message =
      "the store's disk is full or failing, so this call could not be recorded; try again when it has space";
    return new RetryLaterError("ERR_DISK", message, { cause, retryAfterSeconds: 1 });
  }
  return new RetryLaterError("ERR_STORE", "the store is away, so this call could not be recorded; try again", {
    cause,
    retryAfterSeconds: 1,
  });
}

/** What new calls are told while the records of those before are behind. */
function tooBusy(): RetryLaterError {
  return new RetryLaterError("ERR_STORE", "too many calls wait for their records to be stored; try again in a second", {
    retryAfterSeconds: 1,
  });
}

/** A rollout that is calling, by the token that it calls with. */
interface Calling {
  readonly id: string;
  readonly tenant: string;
  readonly jti: string;
  /** What is revoked where all of the rollout's tokens are. */
  readonly rollout_jti: string;
  /** Milliseconds since the epoch. */
  readonly calledAt: number;
}

type Reread = Pick<RolloutState, "status" | "attempt" | "revoked" | "failOpen" | "monthlyBudget">;

const rereadStates = z.array(z.tuple([z.string(), z.string(), z.number(), z.number(), z.string().nullable()]));

/** What may have changed of rollouts that are known already; those that are gone are missing. */
async function readStates(db: StoreDb, rollouts: readonly Calling[]): Promise<ReadonlyMap<string, Reread>> {
  // As one text: the client spends longer on a row than the server.
  const { states } = await db.get<{ states: string }>(sql`
    select json_group_array(json_array(r.id, r.status, r.attempt,
      exists (select 1 from revoked_tokens
        where jti in (c.value ->> 'jti', c.value ->> 'rollout_jti') and tenant_id = r.tenant_id),
      (select settings from tenants where id = r.tenant_id))) as states
    from json_each(${JSON.stringify(rollouts)}) c
    cross join rollouts r on r.id = c.value ->> 'id' and r.tenant_id = c.value ->> 'tenant'`);
  return new Map(
    rereadStates
      .parse(JSON.parse(states))
      .map(([id, status, attempt, revoked, settings]) => [
        id,
        { status, attempt, revoked: revoked !== 0, ...ofSettings(settings) },
      ]),
  );
}

const stateRow = z.object({
  status: z.string(),
  attempt: z.number(),
  revoked: z.number(),
  settings: z.string().nullable(),
  calls: z.number(),
  tokens: z.number(),
});

async function readState(
  db: StoreDb,
  { principal: { tenantId, jti }, rollout: { rolloutId, attempt }, now }: AdmissionRequest,
  known: Spent | undefined,
): Promise<RolloutState | undefined> {
  // Summing reads every call of the attempt past its long texts, so it is done once.
  const spending =
    known === undefined
      ? sql`count(*) as calls, coalesce(sum(prompt_tokens + completion_tokens), 0) as tokens
            from calls where rollout_id = ${rolloutId} and attempt = ${attempt}`
      : sql`0 as calls, 0 as tokens`;
  // One question and not four: this is on the path of a rollout's first call.
  const rows = await db.all(sql`
    select r.status, r.attempt, s.calls, s.tokens,
      exists (select 1 from revoked_tokens
        where jti in (${jti}, ${rolloutJti(rolloutId)}) and tenant_id = ${tenantId}) as revoked,
      (select settings from tenants where id = ${tenantId}) as settings
    from rollouts r, (select ${spending}) s
    where r.id = ${rolloutId} and r.tenant_id = ${tenantId}`);
  if (rows.length === 0) return undefined;
  const row = stateRow.parse(rows[0]);
  return {
    status: row.status,
    attempt: row.attempt,
    jti,
    revoked: row.revoked !== 0,
    ...ofSettings(row.settings),
    spent: known ?? { calls: row.calls, tokens: row.tokens },
    readAt: now,
  };
}

/** What admission wants of a tenant's settings; looked for in the text, since every state that is read has one. */
function ofSettings(settings: string | null): Pick<RolloutState, "failOpen" | "monthlyBudget"> {
  const monthly = /"monthly_budget":([\d.eE+-]+)/.exec(settings ?? "")?.[1];
  return {
    failOpen: settings?.includes('"fail_open":true') ?? false,
    monthlyBudget: monthly === undefined ? undefined : Number(monthly),
  };
}
