import OpenAI from "openai";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { RolloutDetail } from "#shared/wire.ts";
import { startTestEdge, SHA256, type TestEdge } from "../../../support/edge.ts";
import { PROMPT_IDS, type MockAnswer } from "../../../support/mock-inference.ts";

let edge: TestEdge;
beforeAll(async () => {
  edge = await startTestEdge();
});
afterAll(() => edge.stop());

const hello: MockAnswer = () => ({ tokens: ["Hello", ",", " world"] });
beforeEach(() => {
  edge.inference.answer = hello;
  edge.inference.requests.length = 0;
});

const CHAT = "/v1/chat/completions";
const request = { model: "gpt-4o-mini", messages: [{ role: "user", content: "hi" }] };

/** The only call of a rollout. */
async function onlyCall(id: string): Promise<RolloutDetail["calls"][number]> {
  const { calls } = await edge.admin.readRollout(id);
  expect(calls).toHaveLength(1);
  const [call] = calls;
  if (call === undefined) throw new Error("no call was recorded");
  return call;
}

interface Chunk {
  readonly id?: string;
  readonly object?: string;
  readonly model?: string;
  readonly choices?: readonly {
    readonly index: number;
    readonly delta: Record<string, unknown>;
    readonly finish_reason: string | null;
  }[];
  readonly usage?: unknown;
  readonly error?: { readonly message: string; readonly code: string };
}

/** The events of a streamed answer; its last one is checked to be [DONE] unless it failed. */
async function eventsOf(response: Response): Promise<Chunk[]> {
  expect(response.headers.get("content-type")).toMatch("text/event-stream");
  const lines = (await response.text()).split("\n\n").filter((line) => line.startsWith("data: "));
  const events = lines.map((line) => line.slice("data: ".length));
  if (!events.at(-1)?.includes('"error"')) expect(events.pop()).toBe("[DONE]");
  return events.map((event) => JSON.parse(event) as Chunk);
}

describe("a whole answer", () => {
  it("is OpenAI's form with the model's name as asked, and nothing that was not asked for", async () => {
    const { id, token } = await edge.rollout();
    const response = await edge.post(CHAT, token, request);
    expect(response.status).toBe(200);
    const call = await onlyCall(id);
    expect(await response.json()).toEqual({
      id: call.id,
      object: "chat.completion",
      created: expect.any(Number),
      model: "gpt-4o-mini",
      choices: [
        { index: 0, message: { role: "assistant", content: "Hello, world" }, finish_reason: "stop", logprobs: null },
      ],
      usage: { prompt_tokens: 5, completion_tokens: 3, total_tokens: 8 },
    });
  });

  it("was asked of exactly the routed version and is recorded with ids and logprobs before it arrives", async () => {
    const { id, token } = await edge.rollout();
    await (await edge.post(CHAT, token, request)).text();
    expect(edge.inference.requests[0]).toMatchObject({ model: "flight@0", return_token_ids: true, logprobs: true });
    expect(await onlyCall(id)).toMatchObject({
      dialect: "chat",
      modelAsked: "gpt-4o-mini",
      version: "flight@0",
      request,
      response: { role: "assistant", content: "Hello, world" },
      promptTokenIds: PROMPT_IDS,
      responseTokenIds: [100, 101, 102],
      responseTokens: ["Hello", ",", " world"],
      behaviourLogprobs: [-0.5, Math.fround(-0.51), Math.fround(-0.52)],
      finishReason: "stop",
      httpStatus: 200,
      error: null,
      trainable: true,
    });
  });

  it("carries logprobs and token ids to an agent that asks for them", async () => {
    const { token } = await edge.rollout("live");
    const answer: unknown = await (
      await edge.post(CHAT, token, { ...request, logprobs: true, return_token_ids: true })
    ).json();
    expect(answer).toMatchObject({
      prompt_token_ids: PROMPT_IDS,
      choices: [{ token_ids: [100, 101, 102], logprobs: { content: [{ token: "Hello" }, {}, {}] } }],
    });
  });

  it("has whole tool calls, with ids where the endpoint gave none or one twice", async () => {
    const call = { name: "memory", arguments: '{"name":"Ann"}' };
    edge.inference.answer = () => ({
      tokens: ["x"],
      toolCalls: [
        { id: "call_a", ...call },
        { id: "call_a", ...call },
        { id: "", ...call },
      ],
    });
    const { token } = await edge.rollout();
    const answer = (await (await edge.post(CHAT, token, request)).json()) as {
      choices: { finish_reason: string; message: { content: null; tool_calls: { id: string }[] } }[];
    };
    const ids = answer.choices[0]?.message.tool_calls.map(({ id }) => id) ?? [];
    expect(ids[0]).toBe("call_a");
    expect(new Set(ids).size).toBe(3);
    expect(ids.every((id) => id.length > 0)).toBe(true);
    expect(answer.choices[0]?.finish_reason).toBe("tool_calls");
    expect(answer.choices[0]?.message.content).toBeNull();
  });
});

describe("a streamed answer", () => {
  it("has the content in order, the role first, one finish_reason, and no usage that was not asked for", async () => {
    const { id, token } = await edge.rollout();
    const events = await eventsOf(await edge.post(CHAT, token, { ...request, stream: true }));
    const deltas = events.map((event) => event.choices?.[0]?.delta ?? {});
    expect(deltas[0]).toHaveProperty("role", "assistant");
    expect(deltas.flatMap(({ content }) => (typeof content === "string" ? [content] : [])).join("")).toBe(
      "Hello, world",
    );
    // How many tokens share an event is a matter of when they came.
    const finishReasons = events.map((event) => event.choices?.[0]?.finish_reason);
    expect(finishReasons.at(-1)).toBe("stop");
    expect(finishReasons.slice(0, -1).every((reason) => reason === null)).toBe(true);
    for (const event of events) {
      expect(event).toMatchObject({ object: "chat.completion.chunk", model: "gpt-4o-mini", choices: [{ index: 0 }] });
      expect(JSON.stringify(event)).not.toMatch(/token_ids|logprob|usage/);
    }
    expect(await onlyCall(id)).toMatchObject({
      response: { role: "assistant", content: "Hello, world" },
      responseTokenIds: [100, 101, 102],
      promptTokenIds: PROMPT_IDS,
      promptTokens: 5,
      completionTokens: 3,
      trainable: true,
    });
  });

  it("ends with usage where the agent asked for it", async () => {
    const { token } = await edge.rollout();
    const body = { ...request, stream: true, stream_options: { include_usage: true } };
    const events = await eventsOf(await edge.post(CHAT, token, body));
    expect(events.at(-1)).toMatchObject({
      choices: [],
      usage: { prompt_tokens: 5, completion_tokens: 3, total_tokens: 8 },
    });
  });

  it("records the same ids, logprobs and message as the whole answer does", async () => {
    const [first, second] = [await edge.rollout(), await edge.rollout()];
    await (await edge.post(CHAT, first.token, request)).text();
    await (await edge.post(CHAT, second.token, { ...request, stream: true })).text();
    const [whole, streamed] = [await onlyCall(first.id), await onlyCall(second.id)];
    for (const field of [
      "response",
      "promptTokenIds",
      "responseTokenIds",
      "responseTokens",
      "behaviourLogprobs",
      "finishReason",
    ] as const) {
      expect(streamed[field]).toEqual(whole[field]);
    }
  });

  it("streams tool calls with index, id, type and name on the first delta", async () => {
    edge.inference.answer = () => ({
      tokens: ["x", "y"],
      toolCalls: [
        { id: "call_a", name: "memory", arguments: "{}" },
        { id: "", name: "search", arguments: '{"to":"Oslo"}' },
      ],
    });
    const { id, token } = await edge.rollout();
    const events = await eventsOf(await edge.post(CHAT, token, { ...request, stream: true }));
    const called = events.flatMap((event) => (event.choices?.[0]?.delta["tool_calls"] as object[] | undefined) ?? []);
    expect(called).toEqual([
      { index: 0, id: "call_a", type: "function", function: { name: "memory", arguments: "{}" } },
      {
        index: 1,
        id: expect.stringMatching(/^call_.{8}/),
        type: "function",
        function: { name: "search", arguments: '{"to":"Oslo"}' },
      },
    ]);
    expect(events.at(-1)?.choices?.[0]?.finish_reason).toBe("tool_calls");
    expect(await onlyCall(id)).toMatchObject({
      finishReason: "tool_calls",
      response: { tool_calls: [{ id: "call_a" }, {}] },
    });
  });

  it("tells of a failure in mid-stream as an error event, and records what came", async () => {
    edge.inference.answer = () => ({ tokens: ["a", "b", "c"], breakAfter: 3 });
    const { id, token } = await edge.rollout();
    const events = await eventsOf(await edge.post(CHAT, token, { ...request, stream: true }));
    expect(events.at(-1)?.error).toMatchObject({ code: "ERR_UPSTREAM" });
    expect(await onlyCall(id)).toMatchObject({
      httpStatus: 502,
      error: expect.stringContaining("stream broke"),
      response: { content: "ab" },
      responseTokenIds: [100, 101],
      trainable: false,
    });
  });

  it("is recorded as far as it came when the client leaves, and generation is stopped", async () => {
    edge.inference.answer = () => ({ tokens: ["a", "b", "c"], silentAfter: 3 });
    const { id, token } = await edge.rollout();
    const client = new AbortController();
    const hungUp = edge.inference.nextHangUp();
    const response = await fetch(`${edge.url}${CHAT}`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}` },
      body: JSON.stringify({ ...request, stream: true }),
      signal: client.signal,
    });
    await response.body?.getReader().read();
    client.abort();
    await hungUp;
    await expect.poll(async () => (await edge.admin.readRollout(id)).calls.length, { timeout: 10_000 }).toBe(1);
    expect(await onlyCall(id)).toMatchObject({
      httpStatus: 499,
      error: "client_disconnected",
      response: { content: "ab" },
      trainable: false,
    });
  }, 20_000);
});

describe("a failing endpoint", () => {
  it("is asked again after a 500 and a dropped connection, unseen by the agent", async () => {
    edge.inference.answer = (_request, number) =>
      [{ status: 500 }, { drop: true }, { tokens: ["ok"] }][number - 1] ?? {};
    const { id, token } = await edge.rollout();
    expect((await edge.post(CHAT, token, request)).status).toBe(200);
    expect(edge.inference.requests).toHaveLength(3);
    const row = await edge.store.db.get<{ n: number }>(
      sql`select upstream_attempts as n from calls where rollout_id = ${id}`,
    );
    expect(row.n).toBe(3);
  });

  it("that stays full is told as 429 with whole seconds", async () => {
    edge.inference.answer = () => ({ status: 429, headers: { "retry-after": "20" } });
    const { token } = await edge.rollout();
    const response = await edge.post(CHAT, token, request);
    expect(response.status).toBe(429);
    expect(response.headers.get("retry-after")).toBe("20");
  });

  it("that answers as another version is an error and not an answer", async () => {
    edge.inference.answer = () => ({ tokens: ["x"], model: "flight@7" });
    for (const stream of [false, true]) {
      const { id, token } = await edge.rollout();
      const response = await edge.post(CHAT, token, { ...request, stream });
      expect(await response.text()).toContain("answered as flight@7");
      expect(response.status).toBe(stream ? 200 : 502);
      expect(await onlyCall(id)).toMatchObject({ httpStatus: 502, trainable: false });
    }
  });

  it("that refuses the request is passed on as 400 in OpenAI's form and recorded", async () => {
    edge.inference.answer = () => ({ status: 400, error: "too long" });
    const { id, token } = await edge.rollout();
    const response = await edge.post(CHAT, token, request);
    expect(response.status).toBe(400);
    expect(await response.json()).toEqual({
      error: {
        message: "inference refused the request: too long",
        type: "invalid_request_error",
        param: null,
        code: "ERR_INVALID_REQUEST",
      },
    });
    expect(await onlyCall(id)).toMatchObject({ httpStatus: 400, trainable: false });
  });

  it("that gives no token ids is passed on, and the record says that it cannot be trained on", async () => {
    edge.inference.answer = () => ({ tokens: ["a"], withoutIds: true });
    const { id, token } = await edge.rollout();
    expect((await edge.post(CHAT, token, request)).status).toBe(200);
    expect(await onlyCall(id)).toMatchObject({ trainable: false, error: "no_token_ids", responseTokenIds: null });
  });
});

describe("what is refused before inference is asked", () => {
  it.each([
    ["malformed JSON", "{", 400, "ERR_INVALID_REQUEST"],
    ["no messages", { model: "x" }, 400, "ERR_INVALID_REQUEST"],
    ["an unknown version", { ...request, model: "flight@99" }, 404, "model_not_found"],
    ["an unknown policy", { ...request, model: "other@0" }, 404, "model_not_found"],
    ["a body over a megabyte", { ...request, pad: "x".repeat(1_100_000) }, 413, "ERR_TOO_LARGE"],
  ])("%s", async (_what, body, status, code) => {
    const { id, token } = await edge.rollout();
    const response = await edge.post(CHAT, token, body);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: { code, message: expect.any(String), type: expect.any(String) },
    });
    expect(edge.inference.requests).toHaveLength(0);
    expect((await edge.admin.readRollout(id)).calls).toEqual([]);
  });

  it("a forged token, with 401", async () => {
    const response = await edge.post(CHAT, "a.b.c", request);
    expect(response.status).toBe(401);
    expect(await response.json()).toMatchObject({ error: { code: "ERR_AUTH", type: "authentication_error" } });
  });

  it("a token that may not call, with 403", async () => {
    const response = await edge.post(CHAT, await edge.mint({ scopes: ["read"] }), request);
    expect(response.status).toBe(403);
    expect(await response.json()).toMatchObject({ error: { code: "ERR_FORBIDDEN", type: "permission_error" } });
    expect(edge.inference.requests).toHaveLength(0);
  });

  it("a revoked token, with 401", async () => {
    const { token } = await edge.rollout();
    const { jti, exp } = JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString()) as {
      jti: string;
      exp: number;
    };
    const admin = await edge.mint({ scopes: ["admin"] });
    expect((await edge.post("/v1/tokens/revoke", admin, { jti, expires_at: exp * 1000 })).status).toBe(200);
    expect((await edge.post(CHAT, token, request)).status).toBe(401);
  });

  it("calls of a rollout that has ended, with 403", async () => {
    const { id, token } = await edge.rollout();
    expect((await edge.post(CHAT, token, request)).status).toBe(200);
    await edge.admin.cancelRollout(id);
    const response = await edge.post(CHAT, token, request);
    expect(response.status).toBe(403);
    expect(await response.json()).toMatchObject({ error: { message: expect.stringContaining("is cancelled") } });
  });

  it("calls over the token's budget, with 403", async () => {
    const { token } = await edge.rollout("train", { caps: { maxCalls: 2, maxTokens: 1000 } });
    const statuses = [];
    for (let at = 0; at < 3; at++) statuses.push((await edge.post(CHAT, token, request)).status);
    expect(statuses).toEqual([200, 200, 403]);
    const spent = await edge.rollout("train", { caps: { maxCalls: 50, maxTokens: 8 } });
    expect((await edge.post(CHAT, spent.token, request)).status).toBe(200);
    expect((await edge.post(CHAT, spent.token, request)).status).toBe(403);
  });
});

describe("which version answers", () => {
  it("is the route's, and the new route's as soon as it changes; a pin and an explicit version stay", async () => {
    await edge.store.writer.append([
      [
        {
          sql: `insert into policy_versions (tenant_id, policy, version, kind, artifact, sha256, created_at)
                values ('default', 'flight', 1, 'adapter', 'x', ?, 1) on conflict do nothing`,
          args: [SHA256],
        },
      ],
    ]);
    const routed = await edge.rollout();
    const pinned = await edge.rollout("val", { pin: "flight@0" });
    const ask = async (token: string, model = "any"): Promise<string | undefined> => {
      await (await edge.post(CHAT, token, { ...request, model })).text();
      return edge.inference.requests.at(-1)?.model;
    };
    try {
      expect(await ask(routed.token)).toBe("flight@0");
      await edge.admin.routePolicy("flight", 1);
      expect(await ask(routed.token)).toBe("flight@1");
      expect(await ask(pinned.token)).toBe("flight@0");
      expect(await ask(pinned.token, "flight@1")).toBe("flight@0");
      expect(await ask(routed.token, "flight@0")).toBe("flight@0");
    } finally {
      await edge.admin.routePolicy("flight", 0);
    }
  });
});

describe("rewards on the wire", () => {
  it("are made of tool results, once for each tool call however often it comes back", async () => {
    const { id, token } = await edge.rollout();
    const called = (name: string, callId: string): object => ({
      role: "assistant",
      content: null,
      tool_calls: [{ id: callId, type: "function", function: { name, arguments: "{}" } }],
    });
    const messages = [
      ...request.messages,
      called("memory", "call_1"),
      { role: "tool", tool_call_id: "call_1", content: '{"seat":"window"}' },
      called("search", "call_2"),
      { role: "tool", tool_call_id: "call_2", content: "Error: no such city" },
    ];
    await (await edge.post(CHAT, token, { ...request, messages: messages.slice(0, 3) })).text();
    await (await edge.post(CHAT, token, { ...request, messages })).text();
    const { rewards } = await edge.admin.readRollout(id);
    expect(rewards.map(({ source, name, value }) => ({ source, name, value }))).toEqual([
      { source: "air", name: "memory", value: 0.3 },
      { source: "air", name: "search", value: -0.2 },
    ]);
  });
});

describe("the openai package, pointed here by base URL and key alone", () => {
  it("completes, streams and raises as it does with OpenAI", async () => {
    const { token } = await edge.rollout();
    const client = new OpenAI({ baseURL: `${edge.url}/v1`, apiKey: token, maxRetries: 0 });
    const messages = [{ role: "user" as const, content: "hi" }];
    const answer = await client.chat.completions.create({ model: "gpt-4o", messages });
    expect(answer.choices[0]?.message.content).toBe("Hello, world");
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model: "gpt-4o", messages, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    expect(text).toBe("Hello, world");
    await expect(client.chat.completions.create({ model: "flight@99", messages })).rejects.toMatchObject({
      status: 404,
      code: "model_not_found",
    });
    const models = await client.models.list();
    expect(models.data.map(({ id }) => id)).toContain("flight@0");
  });
});
