import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { recordCall, type CallRecord } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { closeRollout, createRollouts, readAttempts, readRollout } from "#shared/store/rollouts.ts";
import type { Principal } from "#shared/tokens.ts";
import { layAgents } from "../../edge/directory.ts";
import {
  isSampled,
  rolloutIdOf,
  SESSION_IDLE_MS,
  sessionHints,
  sessions,
  withoutContent,
  type LiveCaller,
  type Sessions,
} from "../../edge/session.ts";
import { startTestStore, type TestStore } from "../support/store.ts";

describe("sessionHints", () => {
  const all = {
    metadata: { session_id: "meta-session", user_id: "meta-user" },
    conversation: "conv",
    prompt_cache_key: "cache",
    user: "user",
  };

  it.each([
    ["x-fulgur-session before all", { "x-fulgur-session": "ours", "x-session-id": "common" }, all, "ours"],
    ["x-session-id before the fields", { "x-session-id": "common" }, all, "common"],
    ["metadata.session_id", {}, all, "meta-session"],
    ["conversation", {}, { ...all, metadata: {} }, "conv"],
    ["a conversation's id", {}, { conversation: { id: "conv_1" }, user: "user" }, "conv_1"],
    ["prompt_cache_key", {}, { prompt_cache_key: "cache", user: "user" }, "cache"],
    ["user", {}, { user: "user", metadata: { user_id: "meta-user" } }, "user"],
    ["Anthropic's metadata.user_id", {}, { metadata: { user_id: "meta-user" } }, "meta-user"],
    ["nothing", {}, { messages: [] }, undefined],
    ["fields of other types", {}, { user: 7, metadata: "x", conversation: ["a"], prompt_cache_key: "" }, undefined],
    ["a body that is no object", {}, "text", undefined],
  ])("takes %s", (_what, headers, body, session) => {
    expect(sessionHints(new Headers(headers), body).session).toBe(session);
  });

  it("finds what a request goes on from in each dialect, newest first", () => {
    const chat = {
      messages: [
        { role: "assistant", tool_calls: [{ id: "call_1" }, { id: "call_2" }] },
        { role: "tool", tool_call_id: "call_1" },
        { role: "tool", tool_call_id: "call_2" },
      ],
    };
    expect(sessionHints(new Headers(), chat).earlier).toEqual(["call_2", "call_1"]);
    const responses = {
      previous_response_id: "resp_1",
      input: [
        { type: "function_call_output", call_id: "call_3" },
        { type: "message", content: [{ text: "x" }] },
      ],
    };
    expect(sessionHints(new Headers(), responses).earlier).toEqual(["resp_1", "call_3"]);
    const anthropic = { messages: [{ role: "user", content: [{ type: "tool_result", tool_use_id: "toolu_1" }] }] };
    expect(sessionHints(new Headers(), anthropic).earlier).toEqual(["toolu_1"]);
    expect(sessionHints(new Headers(), { ...chat, user: "named" }).earlier).toEqual([]);
  });

  it("reads whose data it is, and consent only from its own header", () => {
    const headers = { "x-fulgur-subject": "alice", "x-fulgur-consent": "granted" };
    expect(sessionHints(new Headers(headers), { user: "bob" })).toMatchObject({ subject: "alice", consent: true });
    expect(sessionHints(new Headers(), { safety_identifier: "s", user: "bob" })).toMatchObject({
      subject: "s",
      consent: false,
    });
    expect(sessionHints(new Headers(), { user: "bob" }).subject).toBe("bob");
    expect(sessionHints(new Headers(), {}).subject).toBeNull();
  });
});

describe("withoutContent", () => {
  it("keeps what is metered and nothing of what was said", () => {
    const record: CallRecord = {
      id: "ca_1",
      tenantId: "t1",
      rolloutId: "ro_1",
      attempt: 1,
      mode: "live",
      dialect: "chat",
      modelAsked: "m",
      policy: "p",
      policyVersion: 3,
      request: '{"messages":["SECRET"]}',
      response: '{"content":"SECRET"}',
      responseTokens: ["SECRET"],
      promptTokenIds: new Uint8Array(4),
      responseTokenIds: new Uint8Array(4),
      behaviourLogprobs: new Uint8Array(4),
      promptTokens: 7,
      completionTokens: 9,
      error: "inference refused the request: SECRET",
      httpStatus: 400,
      trainable: true,
      latencyMs: 1,
      createdAt: 1,
    };
    const kept = withoutContent(record);
    expect(JSON.stringify(kept)).not.toContain("SECRET");
    expect(kept).toMatchObject({
      id: "ca_1",
      policyVersion: 3,
      promptTokens: 7,
      completionTokens: 9,
      httpStatus: 400,
      trainable: false,
      promptTokenIds: null,
      responseTokenIds: null,
      behaviourLogprobs: null,
      error: "failed",
    });
    expect(withoutContent({ ...record, error: "client_disconnected" }).error).toBe("client_disconnected");
  });
});

describe("isSampled", () => {
  it("takes about the fraction that is asked for, and all or none at the ends", async () => {
    const ids = await Promise.all(
      Array.from({ length: 2000 }, (_, at) => rolloutIdOf({ tenantId: "t", agent: "a", name: `s${at}` }, 0)),
    );
    const share = (sample: number): number => ids.filter((id) => isSampled(id, sample)).length / ids.length;
    expect([share(0), share(1)]).toEqual([0, 1]);
    // Five standard deviations of 2,000 draws at 0.25.
    expect(Math.abs(share(0.25) - 0.25)).toBeLessThan(0.05);
  });
});

describe("sessions", () => {
  let store: TestStore;
  beforeAll(async () => {
    store = await startTestStore();
  });
  afterAll(() => store.stop());

  const AGENTS = layAgents({}, [
    { name: "one", settings: { policy: "p" } },
    { name: "two", settings: { policy: "p" } },
    { name: "shy", settings: { policy: "p", live: { consent: "required" } } },
    { name: "none", settings: { policy: "p", live: { sample: 0 } } },
  ]);
  const key = (change: Partial<Principal> = {}): Principal => ({
    tenantId: "t1",
    scopes: ["agent"],
    jti: "key:k1",
    keyId: "k1",
    expiresAtSeconds: Number.MAX_SAFE_INTEGER,
    ...change,
  });

  interface Change {
    readonly headers?: Record<string, string>;
    readonly body?: unknown;
    readonly principal?: Principal;
    readonly agents?: typeof AGENTS;
    readonly now?: number;
    readonly db?: () => StoreDb;
    readonly beside?: Promise<unknown>[];
  }
  const call = (isolate: Sessions, change: Change = {}): Promise<LiveCaller> => {
    const { headers = {}, body = {}, principal = key({ keyAgent: "one" }), agents = AGENTS, now = 1_000_000 } = change;
    const { db = () => store.db, beside = [] } = change;
    return isolate.callerOf({
      headers: new Headers(headers),
      body,
      principal,
      agents,
      db,
      writer: store.writer,
      now,
      later: (work) => void beside.push(work),
    });
  };
  const idOf = async (caller: Promise<LiveCaller>): Promise<string> => (await caller).rollout.rolloutId;

  it("opens one running live rollout for a session, whichever isolates see it first", async () => {
    const headers = { "x-fulgur-session": "chat-1", "x-fulgur-subject": "alice" };
    const ids = await Promise.all(
      [sessions(), sessions(), sessions()].map((isolate) => idOf(call(isolate, { headers }))),
    );
    expect(new Set(ids).size).toBe(1);
    const [id = ""] = ids;
    expect(await readRollout(store.db, "t1", id)).toMatchObject({
      agent: "one",
      mode: "live",
      status: "running",
      attempt: 1,
      sessionId: "chat-1",
      subjectId: "alice",
      keyId: "k1",
      taskId: null,
      leaseUntil: 1_000_000 + SESSION_IDLE_MS,
    });
    expect(await readAttempts(store.db, "t1", [id])).toMatchObject([{ attempt: 1, status: "running" }]);
  });

  it("keeps sessions of other names, agents and tenants apart", async () => {
    const isolate = sessions();
    const headers = { "x-fulgur-session": "same" };
    const ids = [
      await idOf(call(isolate, { headers })),
      await idOf(call(isolate, { headers: { "x-fulgur-session": "other" } })),
      await idOf(call(isolate, { headers, principal: key({ keyAgent: "two" }) })),
      await idOf(call(isolate, { headers, principal: key({ keyAgent: "one", tenantId: "t2" }) })),
    ];
    expect(new Set(ids).size).toBe(4);
  });

  it("makes a new session of each call that says nothing, and joins one by the ids that it was given", async () => {
    const isolate = sessions();
    const first = await call(isolate);
    expect(await idOf(call(isolate))).not.toBe(first.rollout.rolloutId);
    isolate.issued(first, ["call_abc", "resp_0"], 1_000_000);
    const tool = { messages: [{ role: "tool", tool_call_id: "call_abc" }] };
    expect(await idOf(call(isolate, { body: tool }))).toBe(first.rollout.rolloutId);
    expect(await idOf(call(isolate, { body: { previous_response_id: "resp_0" } }))).toBe(first.rollout.rolloutId);
    const elsewhere = key({ keyAgent: "one", tenantId: "t2" });
    expect(await idOf(call(isolate, { body: tool, principal: elsewhere }))).not.toBe(first.rollout.rolloutId);
  });

  it("finds the session of a response that another isolate gave", async () => {
    const first = await call(sessions());
    const hex = "0".repeat(31);
    await store.writer.append([
      recordCall({
        id: `ca_${hex}1`,
        tenantId: "t1",
        rolloutId: first.rollout.rolloutId,
        attempt: 1,
        mode: "live",
        role: "main",
        dialect: "responses",
        modelAsked: "m",
        request: "{}",
        response: JSON.stringify({ role: "assistant", content: "the end" }),
        httpStatus: 200,
        trainable: false,
        latencyMs: 1,
        createdAt: 1,
      }),
    ]);
    const body = { previous_response_id: `resp_${hex}1` };
    expect(await idOf(call(sessions(), { body }))).toBe(first.rollout.rolloutId);
    const foreign = key({ keyAgent: "one", tenantId: "t2" });
    expect(await idOf(call(sessions(), { body, principal: foreign }))).not.toBe(first.rollout.rolloutId);
  });

  it("goes on in a new part once the one before has ended, wherever that was", async () => {
    const headers = { "x-fulgur-session": "parts" };
    const [here, elsewhere] = [sessions(), sessions()];
    const end = (id: string): Promise<unknown> =>
      store.writer.transact(
        closeRollout({ tenantId: "t1", rolloutId: id, attempt: 1 }, { now: 1, status: "finished" }),
      );
    const first = await idOf(call(here, { headers }));
    await end(first);
    here.forget(first);
    const second = await idOf(call(here, { headers }));
    expect(second).not.toBe(first);
    expect(await idOf(call(elsewhere, { headers }))).toBe(second);

    await end(second);
    const beside: Promise<unknown>[] = [];
    expect(await idOf(call(here, { headers, now: 1_002_000, beside }))).toBe(second);
    await Promise.all(beside);
    const third = await idOf(call(here, { headers, now: 1_002_100 }));
    expect(third).not.toBe(second);
    expect(await idOf(call(elsewhere, { headers, now: 1_010_000 }))).toBe(third);
  });

  it("goes round an id that another tenant has taken", async () => {
    const taken = await rolloutIdOf({ tenantId: "t1", agent: "one", name: "squatted" }, 0);
    await store.writer.append([
      createRollouts([{ id: taken, tenantId: "t2", agent: "one", mode: "live", maxAttempts: 1 }], 1),
    ]);
    const id = await idOf(call(sessions(), { headers: { "x-fulgur-session": "squatted" } }));
    expect(id).not.toBe(taken);
    expect(await readRollout(store.db, "t1", id)).toMatchObject({ status: "running", sessionId: "squatted" });
    expect(await readRollout(store.db, "t2", taken)).toMatchObject({ status: "queued", sessionId: null });
  });

  it("holds the session open while it goes on", async () => {
    const isolate = sessions();
    const headers = { "x-fulgur-session": "long" };
    const id = await idOf(call(isolate, { headers }));
    const beside: Promise<unknown>[] = [];
    const later = 1_000_000 + 10 * 60_000;
    await call(isolate, { headers, now: later, beside });
    await Promise.all(beside);
    expect((await readRollout(store.db, "t1", id))?.leaseUntil).toBe(later + SESSION_IDLE_MS);
  });

  it("goes on with a session that it knows while the store is away", async () => {
    const isolate = sessions();
    const headers = { "x-fulgur-session": "away" };
    const id = await idOf(call(isolate, { headers }));
    const db = (): StoreDb => {
      throw new Error("away");
    };
    expect(await idOf(call(isolate, { headers, db, now: 1_060_000 }))).toBe(id);
  });

  it("keeps nothing of who has not consented, and of sessions outside the sample", async () => {
    const shy = { principal: key({ keyAgent: "shy" }) };
    const headers = { "x-fulgur-session": "s", "x-fulgur-subject": "alice" };
    const without = await call(sessions(), { ...shy, headers });
    expect(without.recording).toBe("unsampled");
    expect((await readRollout(store.db, "t1", without.rollout.rolloutId))?.subjectId).toBeNull();
    const granted = await call(sessions(), { ...shy, headers: { ...headers, "x-fulgur-consent": "granted" } });
    expect(granted).toMatchObject({ recording: "full", rollout: { rolloutId: without.rollout.rolloutId } });
    expect((await readRollout(store.db, "t1", without.rollout.rolloutId))?.subjectId).toBe("alice");
    expect((await call(sessions(), { principal: key({ keyAgent: "none" }) })).recording).toBe("unsampled");
    expect((await call(sessions())).recording).toBe("full");
  });

  it("takes the agent from the key, the header, or there being only one, and asks for it otherwise", async () => {
    const free = { principal: key() };
    expect((await call(sessions(), { ...free, headers: { "x-fulgur-agent": "two" } })).rollout.agent).toBe("two");
    const only = layAgents({}, [{ name: "one", settings: { policy: "p" } }]);
    expect((await call(sessions(), { ...free, agents: only })).rollout.agent).toBe("one");
    await expect(call(sessions(), free)).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: expect.stringContaining("one, two, shy, none"),
    });
    await expect(call(sessions(), { ...free, headers: { "x-fulgur-agent": "three" } })).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: expect.stringContaining("there is no agent three"),
    });
    await expect(call(sessions(), { headers: { "x-fulgur-agent": "two" } })).rejects.toMatchObject({
      code: "ERR_FORBIDDEN",
    });
    await expect(call(sessions(), { principal: key({ scopes: ["read"] }) })).rejects.toMatchObject({
      code: "ERR_FORBIDDEN",
    });
  });

  it("leaves a rollout's own token at its rollout", async () => {
    const rollout = {
      rolloutId: "ro_own",
      attempt: 2,
      agent: "one",
      mode: "train",
      pin: null,
      caps: { maxCalls: 1, maxTokens: 1 },
    } as const;
    const principal = { tenantId: "t1", scopes: ["call"], jti: "j", expiresAtSeconds: 1, rollout } as const;
    expect(await call(sessions(), { principal, headers: { "x-fulgur-session": "x" } })).toEqual({
      principal,
      rollout,
      recording: "full",
    });
  });
});
