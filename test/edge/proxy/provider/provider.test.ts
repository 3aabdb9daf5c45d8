import { asc, eq } from "drizzle-orm";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { calls } from "#shared/tables.ts";
import { startTestEdge, type TestEdge } from "../../../support/edge.ts";
import { events, json, startMockProvider, type MockProvider } from "../../../support/provider.ts";

let edge: TestEdge;
let provider: MockProvider;
let admin: string;
beforeAll(async () => {
  provider = await startMockProvider();
  edge = await startTestEdge({
    agents: {
      flight: {
        policy: "flight",
        tools: { add: 0.5 },
        models: { frozen: "provider:theirs/gpt-9", judge: "provider:theirs/gpt-mini" },
      },
    },
  });
  admin = await edge.mint({ scopes: ["admin"] });
  await addProvider(provider.baseUrl);
});
afterAll(async () => {
  await edge.stop();
  await provider.stop();
});
beforeEach(() => {
  provider.requests.length = 0;
  edge.inference.requests.length = 0;
});

async function addProvider(baseUrl: string): Promise<void> {
  const response = await fetch(`${edge.url}/v1/providers/theirs`, {
    method: "PUT",
    headers: { authorization: `Bearer ${admin}`, "content-type": "application/json" },
    body: JSON.stringify({ base_url: baseUrl, key: "sk-theirs" }),
  });
  expect([response.status, await response.text()]).toEqual([200, expect.any(String)]);
}

type StoredCall = typeof calls.$inferSelect;

/** A rollout's calls as they are stored, oldest first. */
function callsOf(id: string): Promise<StoredCall[]> {
  return edge.store.db.select().from(calls).where(eq(calls.rolloutId, id)).orderBy(asc(calls.createdAt), asc(calls.id));
}

async function onlyCall(id: string): Promise<StoredCall | undefined> {
  const stored = await callsOf(id);
  expect(stored).toHaveLength(1);
  return stored[0];
}

const chat = { model: "frozen", messages: [{ role: "user", content: "hi" }] };
const answer = {
  id: "chatcmpl-theirs",
  object: "chat.completion",
  created: 1,
  model: "gpt-9-2026",
  choices: [
    {
      index: 0,
      message: { role: "assistant", content: "Hello", refusal: null },
      finish_reason: "stop",
      logprobs: null,
    },
  ],
  usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7, prompt_tokens_details: { cached_tokens: 4 } },
  service_tier: "default",
};

describe("a frozen provider's answer", () => {
  it("comes back unchanged; model and key are its own, and nothing else of the agent's reaches it", async () => {
    provider.answer = (_request, response) => json(response, answer);
    const { id, token } = await edge.rollout();
    const response = await fetch(`${edge.url}/v1/chat/completions`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${token}`,
        "content-type": "application/json",
        cookie: "session=1",
        "x-fulgur-session": "s",
        "openai-organization": "org",
      },
      // More than a policy would take.
      body: JSON.stringify({ ...chat, n: 1, frequency_penalty: 0.5, store: true }),
    });
    expect(response.status).toBe(200);
    expect(response.headers.get("x-request-id")).toBe("req_theirs");
    expect(await response.json()).toEqual(answer);
    const [seen] = provider.requests;
    expect(seen?.path).toBe("/v1/chat/completions");
    expect(seen?.body).toEqual({ ...chat, model: "gpt-9", n: 1, frequency_penalty: 0.5, store: true });
    expect(seen?.headers.authorization).toBe("Bearer sk-theirs");
    for (const name of ["cookie", "x-fulgur-session", "openai-organization", "x-api-key"]) {
      expect(seen?.headers).not.toHaveProperty(name);
    }
    expect(JSON.stringify(seen)).not.toContain(token);
    expect(edge.inference.requests).toEqual([]);
    expect(await onlyCall(id)).toMatchObject({
      id: response.headers.get("x-fulgur-call"),
      dialect: "chat",
      modelAsked: "frozen",
      role: "frozen",
      provider: "theirs",
      policy: null,
      policyVersion: null,
      modelAnswered: "gpt-9-2026",
      response: { role: "assistant", content: "Hello" },
      promptTokens: 5,
      completionTokens: 2,
      promptTokenIds: null,
      finishReason: "stop",
      httpStatus: 200,
      trainable: false,
      error: "frozen",
    });
  });

  it("streams, its end after its record", async () => {
    const chunk = (delta: object, finish: string | null = null): object => ({
      id: "chatcmpl-theirs",
      object: "chat.completion.chunk",
      created: 1,
      model: "gpt-9-2026",
      choices: [{ index: 0, delta, finish_reason: finish }],
    });
    const chunks = [chunk({ role: "assistant", content: "" }), chunk({ content: "Hello" }), chunk({}, "stop")];
    provider.answer = (_request, response) => events(response, [...chunks, "[DONE]"]);
    const { id, token } = await edge.rollout();
    const response = await edge.post("/v1/chat/completions", token, { ...chat, stream: true });
    expect(response.headers.get("content-type")).toMatch("text/event-stream");
    const sent = (await response.text())
      .trimEnd()
      .split("\n\n")
      .map((event) => event.replace(/^data: /, ""));
    expect(sent.pop()).toBe("[DONE]");
    expect(sent.map((data) => JSON.parse(data) as unknown)).toEqual(chunks);
    expect(await onlyCall(id)).toMatchObject({
      response: { content: "Hello" },
      finishReason: "stop",
      trainable: false,
    });
  });

  it("is rewarded for what its requests tell of tools, whatever dialect they are in", async () => {
    const message = { id: "msg_theirs", type: "message", role: "assistant", content: [{ type: "text", text: "3" }] };
    provider.answer = (_request, response) => json(response, message);
    const { id, token } = await edge.rollout();
    const response = await edge.post("/v1/messages", token, {
      model: "frozen",
      max_tokens: 9,
      messages: [
        { role: "user", content: [{ type: "image", source: { type: "url", url: "https://x/y.png" } }] },
        { role: "assistant", content: [{ type: "tool_use", id: "toolu_1", name: "add", input: {} }] },
        { role: "user", content: [{ type: "tool_result", tool_use_id: "toolu_1", content: "3" }] },
      ],
    });
    expect(response.status).toBe(200);
    const [seen] = provider.requests;
    expect([seen?.path, seen?.headers["x-api-key"], seen?.headers.authorization]).toEqual([
      "/v1/messages",
      "sk-theirs",
      undefined,
    ]);
    const { rewards } = await edge.admin.readRollout(id);
    expect(rewards).toMatchObject([{ name: "add", value: 0.5 }]);
    expect(await callsOf(id)).toMatchObject([{ dialect: "messages", response: { role: "assistant", content: "3" } }]);
  });
});

describe("completions and embeddings", () => {
  it("are passed on, made whole and metered", async () => {
    provider.answer = ({ path }, response) =>
      json(response, path === "/v1/embeddings" ? { data: [{ embedding: "AAAA" }] } : { choices: [{ text: "Hi" }] });
    const { id, token } = await edge.rollout();
    const embedded = await edge.post("/v1/embeddings", token, { model: "frozen", input: ["a"] });
    expect(await embedded.json()).toMatchObject({
      object: "list",
      model: "frozen",
      data: [{ object: "embedding", index: 0, embedding: "AAAA" }],
      usage: { prompt_tokens: expect.any(Number) as number },
    });
    const completed = await edge.post("/v1/completions", token, { model: "judge", prompt: ["a", "b"] });
    expect(await completed.json()).toMatchObject({ object: "text_completion", choices: [{ index: 0, text: "Hi" }] });
    expect(provider.requests.map(({ body }) => body.model)).toEqual(["gpt-9", "gpt-mini"]);
    const stored = await callsOf(id);
    expect(stored).toMatchObject([
      { dialect: "embeddings", provider: "theirs", response: null, completionTokens: 0, trainable: false },
      { dialect: "completions", role: "judge", response: { content: "Hi" } },
    ]);
    for (const { promptTokens } of stored) expect(promptTokens).toBeGreaterThan(0);
  });

  it("are refused of a policy where it has none", async () => {
    const { token } = await edge.rollout();
    const response = await edge.post("/v1/embeddings", token, { model: "flight", input: "x" });
    expect(response.status).toBe(400);
    expect(await response.text()).toContain("has no embeddings");
  });
});

describe("a provider that serves chat alone", () => {
  it.each([404, 405, 501])("by its %i is asked as a chat from then on", async (status) => {
    const other = await startMockProvider();
    other.answer = ({ path }, response) =>
      path === "/v1/chat/completions"
        ? json(response, { choices: [{ message: { content: "Hello" } }] })
        : void response.writeHead(status).end("no such thing");
    await addProvider(other.baseUrl);
    try {
      const { id, token } = await edge.rollout();
      for (const _ of [1, 2]) {
        const response = await edge.post("/v1/responses", token, { model: "frozen", input: "hi" });
        expect(response.status).toBe(200);
        expect(await response.json()).toMatchObject({
          object: "response",
          status: "completed",
          output: [{ type: "message", content: [{ type: "output_text", text: "Hello", annotations: [] }] }],
        });
      }
      expect(other.requests.map(({ path }) => path)).toEqual([
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/chat/completions",
      ]);
      expect(await callsOf(id)).toMatchObject([
        { dialect: "responses", error: "frozen", response: { content: "Hello" } },
        { dialect: "responses", error: "frozen" },
      ]);
    } finally {
      await addProvider(provider.baseUrl);
      await other.stop();
    }
  });
});

describe("a provider that fails", () => {
  it.each([
    ["/v1/chat/completions", chat],
    ["/v1/responses", { model: "frozen", input: "hi" }],
    ["/v1/messages", { ...chat, max_tokens: 9 }],
  ])("on %s is told in the dialect's own words, and recorded", async (path, body) => {
    provider.answer = (_request, response) => json(response, { error: { message: "context is too long" } }, 400);
    const { id, token } = await edge.rollout();
    const response = await edge.post(path, token, body);
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({
      error: {
        type: "invalid_request_error",
        message: "provider theirs refused the request: context is too long",
      },
    });
    expect(await onlyCall(id)).toMatchObject({ httpStatus: 400, provider: "theirs", trainable: false });
  });

  it("by refusing its key says so without the provider's words", async () => {
    provider.answer = (_request, response) => json(response, { error: { message: "bad key sk-theirs" } }, 401);
    const { id, token } = await edge.rollout();
    const response = await edge.post("/v1/chat/completions", token, chat);
    expect(response.status).toBe(502);
    const text = await response.text();
    expect(text).toContain("refused its key (401)");
    expect(text + JSON.stringify(await onlyCall(id))).not.toContain("sk-theirs");
  });

  it("by leading elsewhere is not followed", async () => {
    const elsewhere = await startMockProvider();
    provider.answer = (_request, response) =>
      void response.writeHead(307, { location: `${elsewhere.baseUrl}/chat/completions` }).end();
    const { token } = await edge.rollout();
    const response = await edge.post("/v1/chat/completions", token, chat);
    expect(response.status).toBe(502);
    expect(await response.text()).toContain("answered 307");
    expect(elsewhere.requests).toEqual([]);
    await elsewhere.stop();
  });

  it("by an unknown model is 404, by too many calls 429 with the time to wait", async () => {
    provider.answer = (_request, response) => json(response, { error: { message: "no gpt-9" } }, 404);
    const { token } = await edge.rollout();
    expect((await edge.post("/v1/chat/completions", token, chat)).status).toBe(404);
    provider.answer = (_request, response) =>
      void response.writeHead(429, { "retry-after": "17", "content-type": "application/json" }).end("{}");
    const limited = await edge.post("/v1/chat/completions", token, chat);
    expect([limited.status, limited.headers.get("retry-after")]).toEqual([429, "17"]);
  });

  it("in mid-stream is told as an event, and what came is recorded", async () => {
    provider.answer = (_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const start = { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } };
      const delta = { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Hel" } };
      const error = { type: "error", error: { type: "overloaded_error", message: "too many" } };
      for (const data of [start, delta, error])
        response.write(`event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`);
      response.end();
    };
    const { id, token } = await edge.rollout();
    const response = await edge.post("/v1/messages", token, { ...chat, max_tokens: 9, stream: true });
    expect(response.status).toBe(200);
    const sent = await response.text();
    expect(sent).toContain("event: message_start");
    expect(sent.trimEnd().split("\n\n").at(-1)).toMatch(/^event: error\ndata: .*too many/);
    expect(await onlyCall(id)).toMatchObject({
      httpStatus: 502,
      error: expect.stringContaining("too many") as string,
      response: { content: "Hel" },
    });
  });

  it("in JSON where events were asked for is told as an event", async () => {
    provider.answer = (_request, response) => json(response, { error: "out of order" });
    const { id, token } = await edge.rollout();
    const response = await edge.post("/v1/chat/completions", token, { ...chat, stream: true });
    expect(await response.text()).toMatch(/^data: \{"error":.*out of order/);
    expect(await onlyCall(id)).toMatchObject({ httpStatus: 502, trainable: false });
  });
});

describe("a provider that takes no notice", () => {
  it("of `stream` has its whole answer sent as events", async () => {
    provider.answer = (_request, response) => json(response, answer);
    const { id, token } = await edge.rollout();
    const response = await edge.post("/v1/chat/completions", token, { ...chat, stream: true });
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    const sent = (await response.text()).trimEnd().split("\n\n");
    expect(sent.at(-1)).toBe("data: [DONE]");
    expect(sent.slice(0, -1).map((data) => JSON.parse(data.slice(6)) as unknown)).toMatchObject([
      {
        object: "chat.completion.chunk",
        choices: [{ index: 0, delta: { role: "assistant", content: "Hello" }, finish_reason: "stop" }],
      },
      { object: "chat.completion.chunk", choices: [], usage: answer.usage },
    ]);
    expect(await onlyCall(id)).toMatchObject({ httpStatus: 200, response: { content: "Hello" } });
  });

  it.each([
    ["/v1/responses", { model: "frozen", input: "hi", stream: true }, '"type":"response.output_text.delta"'],
    ["/v1/messages", { ...chat, max_tokens: 9, stream: true }, '"type":"text_delta"'],
  ])("of the path, and answers %s as a chat, is asked as one from then on", async (path, body, said) => {
    const other = await startMockProvider();
    other.answer = (_request, response) => events(response, [{ choices: [{ delta: { content: "Hello" } }] }, "[DONE]"]);
    await addProvider(other.baseUrl);
    try {
      const { id, token } = await edge.rollout();
      for (let call = 0; call < 2; call++) expect(await (await edge.post(path, token, body)).text()).toContain(said);
      expect(other.requests.map((request) => request.path)).toEqual([
        path,
        "/v1/chat/completions",
        "/v1/chat/completions",
      ]);
      expect(await callsOf(id)).toMatchObject([{ response: { content: "Hello" } }, { response: { content: "Hello" } }]);
    } finally {
      await addProvider(provider.baseUrl);
      await other.stop();
    }
  });
});
