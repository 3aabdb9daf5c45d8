import OpenAI from "openai";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { putTenant } from "#shared/store/tenants.ts";
import { capsSchema } from "#shared/wire.ts";
import type { Scope } from "#shared/words.ts";
import { aglClient, type AglClient, type Loose } from "../../../conformance/agl/client.ts";
import { CHAT_ANSWER, startTestEndpoint, type TestEndpoint } from "../../../conformance/agl/endpoint.ts";
import { until } from "../../../support/until.ts";
import { startTestEdge, type TestEdge } from "../../../support/edge.ts";

/** What this edge adds to Agent Lightning's surface; test/conformance/agl has the surface itself. */

let edge: TestEdge;
let agl: AglClient;
let endpoint: TestEndpoint;
const MODEL = "served-model";

beforeAll(async () => {
  edge = await startTestEdge();
  await edge.store.writer.append([
    putTenant({ id: "other", name: "Other", settings: { fail_open: false }, createdAt: 1 }),
  ]);
  agl = await clientOf(["trainer"]);
});
afterAll(() => edge.stop());
beforeEach(async () => {
  endpoint = await startTestEndpoint();
  await agl.must("DELETE", "/api/models");
  await agl.must("POST", "/api/models", [{ model: MODEL, endpoint: endpoint.base, version: 4 }]);
});
afterEach(() => endpoint.stop());

async function clientOf(scopes: readonly Scope[], tenantId = "default"): Promise<AglClient> {
  return aglClient({ url: edge.url, key: await edge.mint({ scopes, tenantId }) });
}

const chatPath = (id: string, mode = "train"): string =>
  `/proxy/rollout/${id}/attempt/0/mode/${mode}/openai/v1/chat/completions`;
const messages = [{ role: "user" as const, content: "hi" }];

/** The rollouts of ours behind these, newest first. */
async function shadows(): Promise<Loose[]> {
  const response = await fetch(`${edge.url}/v1/rollouts?limit=500`, {
    headers: { authorization: `Bearer ${await edge.mint({ scopes: ["read"] })}` },
  });
  const body: Loose = await response.json();
  return body.rollouts.filter((rollout: Loose) => rollout.agent === "agent-lightning");
}

async function shadowDetail(id: string): Promise<Loose> {
  const response = await fetch(`${edge.url}/v1/rollouts/${id}`, {
    headers: { authorization: `Bearer ${await edge.mint({ scopes: ["read"] })}` },
  });
  return response.json();
}

describe("scopes", () => {
  const routes = [
    ["POST", "/api/rollouts"],
    ["GET", "/api/rollouts?state_in=queuing"],
    ["GET", "/api/rollouts/terminal"],
    ["POST", "/api/rollouts/status"],
    ["GET", "/api/rollouts/x"],
    ["PATCH", "/api/rollouts/x"],
    ["DELETE", "/api/rollouts/x"],
    ["GET", "/api/rollouts/x/events"],
    ["POST", "/api/models"],
    ["DELETE", "/api/models"],
    ["POST", "/proxy/pause"],
    ["POST", "/proxy/resume"],
    ["GET", "/proxy/state"],
  ] as const;

  it.each(routes)("%s %s is for trainers and admins alone", async (method, path) => {
    for (const scope of ["read", "agent", "inference"] as const) {
      const refused = await (await clientOf([scope])).ask(method, path, method === "GET" ? {} : { body: {} });
      expect(refused).toMatchObject({ status: 403, body: { detail: expect.stringContaining("scope trainer") } });
    }
  });

  it("agents post events and call", async () => {
    const id = await agl.create();
    const agent = await clientOf(["agent"]);
    await agent.must("POST", `/api/rollouts/${id}/attempt/0/events`, { event_type: "reward", data: { value: 1 } });
    await agent.must("POST", chatPath(id), { messages });
    const reader = await clientOf(["read"]);
    expect((await reader.ask("POST", chatPath(id), { body: { messages } })).status).toBe(403);
    expect(
      (await reader.ask("POST", `/api/rollouts/${id}/attempt/0/events`, { body: { event_type: "x" } })).status,
    ).toBe(403);
  });

  it("a rollout's own token calls in that rollout and in no other", async () => {
    const [own, other] = [await agl.create(), await agl.create()];
    const tokenOf = async (rolloutId: string): Promise<AglClient> =>
      aglClient({
        url: edge.url,
        key: await edge.mint({
          scopes: ["call"],
          rollout: {
            rolloutId,
            attempt: 1,
            agent: "agent-lightning",
            mode: "train",
            pin: null,
            caps: capsSchema.parse({}),
          },
        }),
      });
    const token = await tokenOf(own);
    expect((await token.ask("POST", chatPath(own), { body: { messages } })).status).toBe(200);
    expect((await token.ask("POST", chatPath(other), { body: { messages } })).status).toBe(403);
  });
});

describe("tenants", () => {
  it("see nothing of one another, and hold back nothing", async () => {
    const stranger = await clientOf(["admin"], "other");
    const id = await agl.create();
    for (const [method, path, body] of [
      ["GET", `/api/rollouts/${id}`, undefined],
      ["PATCH", `/api/rollouts/${id}`, { status: { state: "running" } }],
      ["GET", `/api/rollouts/${id}/events`, undefined],
      ["POST", `/api/rollouts/${id}/attempt/0/events`, { event_type: "x" }],
      ["POST", chatPath(id), { messages }],
    ] as const) {
      expect((await stranger.ask(method, path, body === undefined ? {} : { body })).status).toBe(404);
    }
    expect((await stranger.ask("DELETE", `/api/rollouts/${id}`)).status).toBe(204);
    expect((await agl.ask("GET", `/api/rollouts/${id}`)).status).toBe(200);
    expect(await stranger.must("GET", "/api/rollouts?state_in=queuing&limit=2000")).toEqual([]);
    await agl.move(id, "failed");
    expect((await stranger.must("GET", "/api/rollouts/terminal")).total_terminal).toBe(0);
    await stranger.must("POST", "/proxy/pause", {});
    await stranger.must("DELETE", "/api/models");
    expect((await agl.ask("POST", chatPath(id), { body: { messages } })).status).toBe(200);
    // The same id is another rollout there.
    expect(await stranger.create({ rollout_id: id, input: "theirs" })).toBe(id);
    expect((await agl.must("GET", `/api/rollouts/${id}`)).rollout.input).toEqual({ prompt: "hi" });
    expect((await stranger.ask("POST", chatPath(id), { body: { messages } })).status).toBe(503);
  });
});

describe("the record", () => {
  it("has a proxied call with its ids, its reward and its usage, under a rollout that ends with the other", async () => {
    const before = new Set((await shadows()).map(({ id }) => id));
    const id = await agl.create();
    await agl.move(id, "running");
    await agl.must("POST", chatPath(id), { model: "any", messages });
    await agl.must("POST", `/api/rollouts/${id}/attempt/0/events`, { event_type: "reward", data: { value: 0.5 } });
    const made = (await shadows()).filter((rollout) => !before.has(rollout.id));
    expect(made).toMatchObject([{ mode: "train", status: "running", attempt: 1 }]);
    await agl.move(id, "succeeded");
    await agl.must("DELETE", `/api/rollouts/${id}`);
    const detail = await shadowDetail(made[0].id);
    expect(detail.rollout).toMatchObject({
      status: "finished",
      reward: 0.5,
      disposition: "dropped",
      drop_reason: "deleted",
    });
    expect(detail.calls).toMatchObject([
      {
        dialect: "chat",
        model_asked: MODEL,
        prompt_tokens: 3,
        completion_tokens: 2,
        trainable: true,
        error: null,
        temperature: 1,
      },
    ]);
    expect(detail.rewards).toMatchObject([{ source: "explicit", value: 0.5 }]);
  });

  it("keeps ids and log-probabilities from an agent that did not ask for them", async () => {
    const id = await agl.create();
    const plain = await agl.must("POST", chatPath(id), { messages });
    expect(JSON.stringify(plain)).not.toMatch(/token_ids|prompt_token_ids/);
    expect(plain.choices[0].logprobs).toBeNull();
    const asking = await agl.must("POST", chatPath(id), { messages, return_token_ids: true, logprobs: true });
    expect(asking).toMatchObject({
      prompt_token_ids: [1, 2, 3],
      choices: [{ token_ids: [11, 12], logprobs: { content: [{ logprob: -0.5 }, { logprob: -0.25 }] } }],
    });
  });

  it("keeps what experts a mixture took from the agent, for the trainer", async () => {
    const id = await agl.create();
    endpoint.answer = () => ({
      body: { ...CHAT_ANSWER, choices: [{ ...CHAT_ANSWER.choices[0], routed_experts: [[1]] }] },
    });
    expect(JSON.stringify(await agl.must("POST", chatPath(id), { messages }))).not.toContain("routed_experts");
    const [event] = await agl.must("GET", `/api/rollouts/${id}/events`);
    expect(event.data.routed_experts).toEqual([[1]]);
  });

  it("has the outcomes of tools, once, where an agent of the name is set up", async () => {
    await edge.admin.putAgent("agent-lightning", { models: { "*": "policy:flight" }, tools: { search: 0.5 } });
    const before = new Set((await shadows()).map(({ id }) => id));
    const id = await agl.create();
    const turn = [
      ...messages,
      {
        role: "assistant",
        tool_calls: [{ id: "c1", type: "function", function: { name: "search", arguments: "{}" } }],
      },
      { role: "tool", tool_call_id: "c1", content: "Error: nothing found" },
    ];
    await agl.must("POST", chatPath(id), { messages: turn });
    await agl.must("POST", chatPath(id), { messages: turn });
    const [made] = (await shadows()).filter((rollout) => !before.has(rollout.id));
    const { rewards } = await shadowDetail(made.id);
    expect(rewards).toMatchObject([{ source: "air", name: "search", value: -0.5 }]);
  });

  it("counts tokens by their ids where the endpoint does not count", async () => {
    const id = await agl.create();
    const { usage: _usage, ...uncounted } = CHAT_ANSWER;
    endpoint.answer = () => ({ body: uncounted });
    expect((await agl.must("POST", chatPath(id), { messages })).usage).toEqual({
      prompt_tokens: 3,
      completion_tokens: 2,
      total_tokens: 5,
    });
  });
});

describe("clients", () => {
  const openai = async (id: string): Promise<OpenAI> =>
    new OpenAI({
      baseURL: `${edge.url}/proxy/rollout/${id}/attempt/0/mode/train/openai/v1`,
      apiKey: await edge.mint({ scopes: ["agent"] }),
      maxRetries: 0,
    });

  it("get whole answers and streams, also from an endpoint that says the least", async () => {
    for (const body of [CHAT_ANSWER, { choices: [{ message: { content: "Hello there" } }] }]) {
      endpoint.answer = () => ({ body });
      const id = await agl.create();
      const client = await openai(id);
      const whole = await client.chat.completions.create({ model: "x", messages });
      expect(whole.choices[0]).toMatchObject({ index: 0, finish_reason: "stop", message: { content: "Hello there" } });
      expect(whole.usage?.total_tokens).toBeGreaterThan(0);
      const stream = await client.chat.completions.create({
        model: "x",
        messages,
        stream: true,
        stream_options: { include_usage: true },
      });
      let text = "";
      let finish: string | null = null;
      let tokens = 0;
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? "";
        finish ??= chunk.choices[0]?.finish_reason ?? null;
        tokens += chunk.usage?.total_tokens ?? 0;
      }
      expect([text, finish]).toEqual(["Hello there", "stop"]);
      expect(tokens).toBeGreaterThan(0);
      // The endpoint is asked for a whole answer either way.
      expect(endpoint.requests.at(-1)?.body).not.toHaveProperty("stream");
      expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toHaveLength(2);
    }
  });

  it("get tool calls, in answers and streams", async () => {
    const called = { function: { name: "search", arguments: '{"q":1}' } };
    endpoint.answer = () => ({ body: { choices: [{ message: { content: null, tool_calls: [called] } }] } });
    const client = await openai(await agl.create());
    const whole = await client.chat.completions.create({ model: "x", messages });
    expect(whole.choices[0]).toMatchObject({
      finish_reason: "tool_calls",
      message: { tool_calls: [{ id: expect.stringMatching(/./), type: "function", ...called }] },
    });
    const names: (string | undefined)[] = [];
    for await (const chunk of await client.chat.completions.create({ model: "x", messages, stream: true })) {
      for (const piece of chunk.choices[0]?.delta.tool_calls ?? []) names.push(piece.function?.name);
    }
    expect(names).toEqual(["search"]);
  });

  it("read a pause as a reason to try again", async () => {
    const client = await openai(await agl.create());
    await agl.must("POST", "/proxy/pause", { retry_after_seconds: 7 });
    try {
      await expect(client.chat.completions.create({ model: "x", messages })).rejects.toMatchObject({ status: 503 });
    } finally {
      await agl.must("POST", "/proxy/resume");
    }
  });
});

describe("where calls go", () => {
  it("a policy of ours by its name, at the version that is routed", async () => {
    const id = await agl.create();
    const answer = await agl.must("POST", chatPath(id), { model: "flight", messages });
    expect(answer.choices[0].message.content).toBe("Hello world");
    expect(endpoint.requests).toEqual([]);
    expect(edge.inference.requests.at(-1)).toMatchObject({
      model: "flight@0",
      temperature: 1,
      return_token_ids: true,
      logprobs: true,
    });
    const [event] = await agl.must("GET", `/api/rollouts/${id}/events?format=triplet`);
    expect(event.data).toMatchObject({ response_token_ids: [100, 101], server: { model: "flight@0", version: 0 } });
  });

  it("nowhere, where the tenant's budget does not cover it, and then they hold back no weights", async () => {
    const id = await agl.create();
    const admin = { authorization: `Bearer ${await edge.mint({ scopes: ["admin"] })}` };
    const send = (method: string, path: string, body: object): Promise<Response> =>
      fetch(`${edge.url}${path}`, { method, headers: admin, body: JSON.stringify(body) });
    const price = { model: "flight", prompt_per_million: 0, completion_per_million: 1e6, from: "2026-01-01" };
    expect((await send("PUT", "/v1/prices", price)).status).toBeLessThan(300);
    expect((await send("PATCH", "/v1/tenant", { monthly_budget: 0.5 })).status).toBe(200);
    const before = edge.inference.requests.length;
    try {
      const refused = await agl.ask("POST", chatPath(id), { body: { model: "flight", messages } });
      expect(refused).toMatchObject({ status: 402, body: { error: { code: "ERR_BUDGET" } } });
      expect(edge.inference.requests.length).toBe(before);
      expect(await agl.must("GET", "/proxy/state")).toMatchObject({ inflight: 0 });
    } finally {
      await send("PATCH", "/v1/tenant", { monthly_budget: null });
    }
  });

  it("a policy that answers as another version is an error, never a guess", async () => {
    const id = await agl.create();
    edge.inference.answer = () => ({ tokens: ["x"], model: "flight@9" });
    try {
      expect((await agl.ask("POST", chatPath(id), { body: { model: "flight@0", messages } })).status).toBe(502);
    } finally {
      edge.inference.answer = () => ({ tokens: ["Hello", " world"] });
    }
    expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toEqual([]);
  });

  it("a registered model of the asked name before others, else the newest", async () => {
    const second = await startTestEndpoint();
    try {
      await agl.must("POST", "/api/models", [{ model: "newer", endpoint: second.base }]);
      const id = await agl.create();
      await agl.must("POST", chatPath(id), { model: MODEL, messages });
      expect([endpoint.requests.length, second.requests.length]).toEqual([1, 0]);
      await agl.must("POST", chatPath(id), { model: "gpt-4o", messages });
      expect([endpoint.requests.length, second.requests.length]).toEqual([1, 1]);
      expect(second.requests[0]?.body.model).toBe("newer");
    } finally {
      await second.stop();
    }
  });

  it.each([
    "http://169.254.169.254/latest",
    "http://10.0.0.1/v1",
    "file:///etc/passwd",
    "http://u:p@127.0.0.1/v1",
    "x",
  ])("not to %s", async (address) => {
    await agl.must("DELETE", "/api/models");
    await agl.must("POST", "/api/models", [{ model: MODEL, endpoint: address }]);
    const id = await agl.create();
    const refused = await agl.ask("POST", chatPath(id), { body: { messages } });
    expect(refused).toMatchObject({ status: 403, body: { error: { code: "ERR_FORBIDDEN" } } });
    expect(await agl.must("GET", "/proxy/state")).toMatchObject({ inflight: 0 });
  });

  it("not where a redirect leads", async () => {
    const target = await startTestEndpoint();
    try {
      endpoint.answer = () => ({ status: 307, headers: { location: `${target.base}/chat/completions` }, body: {} });
      const id = await agl.create();
      expect((await agl.ask("POST", chatPath(id), { body: { messages } })).status).toBe(502);
      expect(target.requests).toEqual([]);
      expect(endpoint.requests).toHaveLength(1);
      expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toEqual([]);
      expect(await agl.must("GET", "/proxy/state")).toMatchObject({ inflight: 0 });
    } finally {
      await target.stop();
    }
  });
});

describe("odd input", () => {
  it("nested without end is refused", async () => {
    const deep = "[".repeat(200_000) + "]".repeat(200_000);
    const id = await agl.create();
    for (const [path, text] of [
      ["/api/rollouts", `[{"input":${deep}}]`],
      [`/api/rollouts/${id}/attempt/0/events`, `{"event_type":"x","data":{"a":${deep}}}`],
    ] as const) {
      expect((await agl.ask("POST", path, { text })).status).toBe(422);
    }
    expect((await agl.ask("POST", chatPath(id), { text: `{"messages":${deep}}` })).status).toBe(400);
    expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toEqual([]);
  });

  it("a step's rollouts come in one request", async () => {
    const template = "x".repeat(20_000);
    const body = Array.from({ length: 400 }, (_, at) => ({
      rollout_id: `step-${at}-${crypto.randomUUID()}`,
      input: { at },
      config: { k8s: { job_template: template } },
    }));
    const created = await agl.must("POST", "/api/rollouts", body);
    expect(created.map((rollout: Loose) => rollout.rollout_id)).toEqual(body.map(({ rollout_id }) => rollout_id));
    expect(created[399].config.k8s.job_template).toBe(template);
    const statuses = await agl.must(
      "POST",
      "/api/rollouts/status",
      body.slice(0, 256).map(({ rollout_id }) => rollout_id),
    );
    expect(Object.values(statuses)).toHaveLength(256);
    expect(Object.values(statuses)[0]).toMatchObject({ state: "queuing", version: 1 });
  });

  it("a status of a rollout that is not there, or of too many, is refused", async () => {
    const id = await agl.create();
    expect((await agl.ask("POST", "/api/rollouts/status", { body: [id, "nobody"] })).status).toBe(404);
    const many = Array.from({ length: 257 }, () => id);
    expect((await agl.ask("POST", "/api/rollouts/status", { body: many })).status).toBe(422);
    expect(await agl.must("POST", "/api/rollouts/status", [])).toEqual({});
  });

  it("names of objects' own fields are data", async () => {
    const [rollout] = await agl.must("POST", "/api/rollouts", [
      { input: { constructor: 1 }, metadata: { hasOwnProperty: 2, toString: "x" } },
    ]);
    expect(rollout.input).toEqual({ constructor: 1 });
    expect(rollout.metadata).toMatchObject({ hasOwnProperty: 2, toString: "x" });
  });
});

describe("while the store is away", () => {
  it("everything is answered with 503, so that clients come again, and then goes on", async () => {
    const id = await agl.create();
    await agl.must("POST", chatPath(id), { messages });
    await edge.store.kill();
    for (const [method, path, body] of [
      ["POST", "/api/rollouts", [{ input: 1 }]],
      ["GET", "/api/rollouts?state_in=queuing", undefined],
      ["GET", "/api/rollouts/terminal", undefined],
      ["GET", `/api/rollouts/${id}`, undefined],
      ["PATCH", `/api/rollouts/${id}`, { status: { state: "running" } }],
      ["POST", `/api/rollouts/${id}/attempt/0/events`, { event_type: "x" }],
      ["GET", `/api/rollouts/${id}/events`, undefined],
      ["POST", "/api/models", [{ model: "m", endpoint: "http://127.0.0.1:1/v1" }]],
      ["POST", "/proxy/pause", {}],
      ["GET", "/proxy/state", undefined],
      ["POST", chatPath(id), { messages }],
    ] as const) {
      const answer = await agl.ask(method, path, body === undefined ? {} : { body });
      expect([method, path, answer.status]).toEqual([method, path, 503]);
      expect(answer.headers.get("retry-after")).toBe("1");
      expect(answer.body).toHaveProperty("detail");
    }
    expect(endpoint.requests).toHaveLength(1);
    await edge.store.restart();
    await until(
      "a change after the restart",
      async () =>
        (await agl.ask("PATCH", `/api/rollouts/${id}`, { body: { status: { state: "running" } } })).status === 200,
    );
    expect((await agl.must("POST", chatPath(id), { messages })).choices).toHaveLength(1);
    expect(await agl.must("GET", `/api/rollouts/${id}/events`)).toHaveLength(2);
  });
});
