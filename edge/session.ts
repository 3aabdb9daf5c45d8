import { eq, and, sql } from "drizzle-orm";
import { FulgurError } from "#shared/errors.ts";
import type { CallRecord } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { extendLease, openSession, readStatuses } from "#shared/store/rollouts.ts";
import { transact, type StoreWriter } from "#shared/store/statement.ts";
import { calls, rollouts } from "#shared/tables.ts";
import type { Principal, RolloutClaims } from "#shared/tokens.ts";
import type { Agents } from "./directory.ts";
import { TtlCache } from "./ttl-cache.ts";

/**
 * Live sessions of agents that call with a long-lived key: which session a call belongs to, and the rollout that it is.
 *
 * A session's rollout has an id that follows from tenant, agent and session, so that whichever isolate sees the session
 * first opens the same one. A session that was silent for half an hour is finished (dispatch/sweep.ts); when it goes on, that
 * is its next part, a rollout of its own.
 */
export interface Sessions {
  /**
   * Who is calling, with an open rollout to record into. A rollout's own token is that already.
   * Throws FulgurError ERR_FORBIDDEN where the key may not make LLM calls or not for this agent, ERR_INVALID_REQUEST where
   * it does not say which agent it is, ERR_STORE where a new session cannot be opened because the store is away.
   */
  callerOf(request: SessionRequest): Promise<LiveCaller>;
  /** Notes ids that an answer gave out (tool calls, `resp_…`), by which a later call is known to go on with its session. */
  issued(caller: LiveCaller, ids: readonly string[], now: number): void;
  /** Forgets a rollout that has just ended in this isolate. */
  forget(rolloutId: string): void;
}

export interface SessionRequest {
  readonly headers: Headers;
  /** The request's JSON, in whatever dialect. */
  readonly body: unknown;
  readonly principal: Principal;
  readonly agents: Agents;
  readonly db: () => StoreDb;
  readonly writer: StoreWriter;
  /** Milliseconds since the epoch. */
  readonly now: number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

export interface LiveCaller {
  readonly principal: Principal;
  readonly rollout: RolloutClaims;
  /**
   * `unsampled`: the call is answered and metered, but its request, response and token ids are not stored and it is not
   * trainable; the answer says so with `x-fulgur-record: unsampled`.
   */
  readonly recording: "full" | "unsampled";
  /** The session that a key's call belongs to; undefined for a rollout's own token. */
  readonly session?: string;
}

/** What a request says of its session. */
export interface SessionHints {
  /** Named by a header or a field; undefined where nothing names it. */
  readonly session: string | undefined;
  /** Ids that the request carries on from, newest first: tool calls and the response before. */
  readonly earlier: readonly string[];
  readonly agent: string | undefined;
  /** Whose data it is. */
  readonly subject: string | null;
  readonly consent: boolean;
}

/** A session that is silent for longer is over. */
export const SESSION_IDLE_MS = 30 * 60_000;
/** The lease of a session that goes on is extended this often. */
const EXTEND_EVERY_MS = 5 * 60_000;
/** Younger, a look at the rollout's state is simply used; older, it is repeated beside the call. */
const FRESH_MS = 1000;
/** Older, the call waits for it. */
const USABLE_MS = 5000;
/** How long ids that were given out are remembered. */
const ISSUED_MS = 6 * 3_600_000;
/** Parts that are looked for with one question. */
const PARTS_A_LOOK = 16;
/** Longer names are cut where they are stored; the rollout's id follows from the whole. */
const MAX_NAME = 512;
/** Of a request's tool results, the last ones tell as much as all. */
const MAX_EARLIER = 16;

/** A long-lived session is bounded by its key's rate and the tenant's budget, not by caps of its own. */
const NO_CAPS: RolloutClaims["caps"] = { maxCalls: Number.MAX_SAFE_INTEGER, maxTokens: Number.MAX_SAFE_INTEGER };

export function sessions(): Sessions {
  const opened = new TtlCache<Opened>({ ttlMs: 24 * 3_600_000, maxEntries: 20_000 });
  const keyOfRollout = new TtlCache<string>({ ttlMs: 24 * 3_600_000, maxEntries: 20_000 });
  const given = new TtlCache<string>({ ttlMs: ISSUED_MS, maxEntries: 50_000 });

  async function sessionName(request: SessionRequest, agent: string, hints: SessionHints): Promise<string> {
    if (hints.session !== undefined) return hints.session;
    const { principal, now } = request;
    for (const id of hints.earlier) {
      const known = given.get(issuedKey(principal.tenantId, agent, id), now);
      if (known !== undefined) return known;
    }
    // Another isolate may have answered; a response's id finds its call.
    for (const id of hints.earlier) {
      if (!/^resp_[0-9a-f]{32}$/.test(id)) continue;
      const found = await sessionOfCall(request.db(), principal.tenantId, agent, `ca_${id.slice(5)}`);
      if (found !== undefined) return found;
    }
    return crypto.randomUUID();
  }

  /** Opens the session's newest part, or the one after it where that has ended. */
  async function open(request: SessionRequest, session: Session, from: number): Promise<Opened> {
    const { writer, now, principal } = request;
    for (let part = from; ;) {
      const id = await rolloutIdOf(session, part);
      const { tenantId, agent, name } = session;
      const leaseUntil = now + SESSION_IDLE_MS;
      const status = await transact(
        writer,
        openSession(
          { id, tenantId, agent, mode: "live", sessionId: name.slice(0, MAX_NAME), keyId: principal.keyId ?? null },
          { now, leaseUntil, subjectId: session.subject },
        ),
      );
      if (status === "running") return { id, part, leaseUntil, lookedAt: now };
      part = await firstOpenPart(request, session, part + 1);
    }
  }

  async function firstOpenPart(request: SessionRequest, session: Session, from: number): Promise<number> {
    for (let first = from; ; first += PARTS_A_LOOK) {
      const ids = await Promise.all(Array.from({ length: PARTS_A_LOOK }, (_, at) => rolloutIdOf(session, first + at)));
      const statuses = await readStatuses(request.db(), session.tenantId, ids);
      const free = ids.findIndex((id) => (statuses.get(id) ?? "running") === "running");
      if (free !== -1) return first + free;
    }
  }

  /** Looks whether a part that this isolate knows is still open, and opens the next one where it is not. */
  async function look(request: SessionRequest, session: Session, known: Opened): Promise<Opened> {
    const statuses = await readStatuses(request.db(), session.tenantId, [known.id]);
    return statuses.get(known.id) === "running"
      ? { ...known, lookedAt: request.now }
      : open(request, session, known.part);
  }

  function keep(session: Session, now: number, part: Opened): Opened {
    const key = sessionKey(session);
    opened.set(key, part, now);
    keyOfRollout.set(part.id, key, now);
    return part;
  }

  async function partOf(request: SessionRequest, session: Session): Promise<Opened> {
    const { now, later, writer } = request;
    const known = opened.get(sessionKey(session), now);
    if (known === undefined) return keep(session, now, await open(request, session, 0));
    let part = known;
    const age = now - known.lookedAt;
    if (age >= USABLE_MS) {
      // While the store is away a session that is known goes on: its records wait in the writer's outbox.
      part = keep(session, now, await look(request, session, known).catch(() => ({ ...known, lookedAt: now })));
    } else if (age >= FRESH_MS) {
      // Noted before it is asked: the calls of the next moments need not ask too.
      keep(session, now, { ...known, lookedAt: now });
      later(
        look(request, session, known).then(
          (seen) => void keep(session, now, seen),
          () => undefined,
        ),
      );
    }
    if (part.leaseUntil - now < SESSION_IDLE_MS - EXTEND_EVERY_MS) {
      const leaseUntil = now + SESSION_IDLE_MS;
      part = keep(session, now, { ...part, leaseUntil });
      const ref = { tenantId: session.tenantId, rolloutId: part.id, attempt: 1 };
      later(writer.append([extendLease(ref, leaseUntil)]).catch(() => undefined));
    }
    return part;
  }

  return {
    async callerOf(request) {
      const { principal, agents } = request;
      if (principal.rollout !== undefined && principal.scopes.includes("call")) {
        return { principal, rollout: principal.rollout, recording: "full" };
      }
      requireCalling(principal);
      const hints = sessionHints(request.headers, request.body);
      const agent = agentOf(hints.agent, principal, agents);
      const name = await sessionName(request, agent, hints);
      const { live } = agents[agent] ?? { live: undefined };
      const withConsent = live?.consent !== "required" || hints.consent;
      const session: Session = {
        tenantId: principal.tenantId,
        agent,
        name,
        // Of somebody who has not consented nothing is kept, not even who it is.
        subject: withConsent ? hints.subject : null,
      };
      const { id } = await partOf(request, session);
      return {
        principal,
        rollout: { rolloutId: id, attempt: 1, agent, mode: "live", pin: null, caps: NO_CAPS },
        recording: withConsent && isSampled(id, live?.sample ?? 1) ? "full" : "unsampled",
        session: name,
      };
    },
    issued({ principal, rollout, session }, ids, now) {
      if (session === undefined) return;
      for (const id of ids) given.set(issuedKey(principal.tenantId, rollout.agent, id), session, now);
    },
    forget(rolloutId) {
      const key = keyOfRollout.get(rolloutId, 0);
      if (key !== undefined) opened.delete(key);
    },
  };
}

interface Session {
  readonly tenantId: string;
  readonly agent: string;
  readonly name: string;
  readonly subject: string | null;
}

/** A session's open part, as this isolate knows it. */
interface Opened {
  readonly id: string;
  /** 0 is the first. */
  readonly part: number;
  readonly leaseUntil: number;
  readonly lookedAt: number;
}

/**
 * What a request says of its session, in the order in which it counts: our header, a common one, the fields that SDKs
 * send, then what the request carries on from.
 */
export function sessionHints(headers: Headers, body: unknown): SessionHints {
  const fields = asObject(body);
  const metadata = asObject(fields["metadata"]);
  const conversation = fields["conversation"];
  const session =
    textOf(headers.get("x-fulgur-session")) ??
    textOf(headers.get("x-session-id")) ??
    textOf(metadata["session_id"]) ??
    textOf(conversation) ??
    textOf(asObject(conversation)["id"]) ??
    textOf(fields["prompt_cache_key"]) ??
    textOf(fields["user"]) ??
    textOf(metadata["user_id"]);
  return {
    session,
    earlier: session === undefined ? earlierIds(fields) : [],
    agent: textOf(headers.get("x-fulgur-agent")),
    subject:
      (
        textOf(headers.get("x-fulgur-subject")) ??
        textOf(fields["safety_identifier"]) ??
        textOf(fields["user"]) ??
        null
      )?.slice(0, MAX_NAME) ?? null,
    consent: headers.get("x-fulgur-consent") === "granted",
  };
}

/** Ids of the response and of the tool calls that a request answers to, newest first. */
function earlierIds(fields: Fields): string[] {
  const ids: string[] = [];
  const add = (value: unknown): void => {
    if (typeof value === "string" && value !== "" && value.length <= MAX_NAME) ids.push(value);
  };
  add(fields["previous_response_id"]);
  // Chat and Anthropic have messages, responses has input; a tool's result may be a message or a part of one.
  for (const list of [fields["messages"], fields["input"]]) {
    if (!Array.isArray(list)) continue;
    const items: readonly unknown[] = list;
    for (let at = items.length - 1; at >= 0 && ids.length < MAX_EARLIER; at--) {
      const item = asObject(items[at]);
      add(item["tool_call_id"]);
      if (typeof item["type"] === "string" && item["type"].endsWith("_call_output")) add(item["call_id"]);
      const parts: unknown = item["content"];
      if (!Array.isArray(parts)) continue;
      for (const part of parts as readonly unknown[]) add(asObject(part)["tool_use_id"]);
    }
  }
  return ids.slice(0, MAX_EARLIER);
}

/** Whether a session's part is of the sampled fraction; the same wherever it is asked. */
export function isSampled(rolloutId: string, sample: number): boolean {
  // The id is a hash: its last 12 digits are as good as a draw from [0, 1).
  return Number.parseInt(rolloutId.slice(-12), 16) / 2 ** 48 < sample;
}

/** The record of a call outside the sample: who was asked for what and how much it took, and nothing of what was said. */
export function withoutContent(record: CallRecord): CallRecord {
  return {
    ...record,
    request: "{}",
    response: null,
    promptTokenIds: null,
    responseTokenIds: null,
    behaviourLogprobs: null,
    responseTokens: null,
    prefixCallId: null,
    prefixTokens: 0,
    trainable: false,
    // Anything but a bare code may quote the prompt.
    error:
      record.error === null || record.error === undefined || /^[a-z_]+$/.test(record.error) ? record.error : "failed",
  };
}

/** The id of a session's n-th part. */
export async function rolloutIdOf(
  { tenantId, agent, name }: Pick<Session, "tenantId" | "agent" | "name">,
  part: number,
): Promise<string> {
  const text = new TextEncoder().encode(JSON.stringify([tenantId, agent, name, part]));
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", text));
  return `ro_${Array.from(digest.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

function requireCalling({ scopes }: Principal): void {
  if (scopes.includes("agent") || scopes.includes("admin") || scopes.includes("trainer")) return;
  throw new FulgurError(
    "ERR_FORBIDDEN",
    `LLM calls need a rollout's token (POST /v1/tokens with agent and mode) or a key with scope agent; this one has ${scopes.join(", ")}`,
  );
}

function agentOf(asked: string | undefined, { keyAgent }: Principal, agents: Agents): string {
  if (keyAgent !== undefined && asked !== undefined && asked !== keyAgent) {
    throw new FulgurError("ERR_FORBIDDEN", `this key is for agent ${keyAgent}, not for ${asked}`);
  }
  const names = Object.keys(agents);
  const agent = keyAgent ?? asked ?? (names.length === 1 ? names[0] : undefined);
  if (agent !== undefined && Object.hasOwn(agents, agent)) return agent;
  const there = `there are ${names.join(", ") || "none"}`;
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    agent === undefined
      ? `which agent is this? ${there}: name one with the header x-fulgur-agent, or make the key for one (npx fulgur keys create --agent NAME)`
      : `there is no agent ${agent}; ${there} (npx fulgur agents map ${agent} '*=policy:NAME' makes it)`,
  );
}

async function sessionOfCall(
  db: StoreDb,
  tenantId: string,
  agent: string,
  callId: string,
): Promise<string | undefined> {
  const [found] = await db
    .select({ session: rollouts.sessionId })
    .from(calls)
    .innerJoin(rollouts, eq(rollouts.id, calls.rolloutId))
    .where(
      and(
        eq(calls.id, callId),
        sql`+${calls.tenantId} = ${tenantId}`,
        sql`+${rollouts.tenantId} = ${tenantId}`,
        eq(rollouts.agent, agent),
      ),
    )
    .limit(1);
  return found?.session ?? undefined;
}

function sessionKey({ tenantId, agent, name }: Session): string {
  return JSON.stringify([tenantId, agent, name]);
}

function issuedKey(tenantId: string, agent: string, id: string): string {
  return JSON.stringify([tenantId, agent, id]);
}

type Fields = Readonly<Record<string, unknown>>;

function asObject(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

function textOf(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}
