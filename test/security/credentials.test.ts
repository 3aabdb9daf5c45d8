import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { Hono } from "hono";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { putTenant } from "#shared/store/tenants.ts";
import type { EdgeHono } from "../../edge/context.ts";
import { errorResponse } from "../../edge/http-errors.ts";
import { providerRoutes } from "../../edge/routes/providers.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ask, chat, expectOf, expectRefusal } from "./support.ts";

/** What a key, a token or a provider's key is good for, and for how long. */

let edge: TestEdge;
let admin: string;
beforeAll(async () => {
  edge = await startTestEdge({
    agents: { flight: { policy: "flight" }, other: { policy: "flight" } },
    agentEntries: {},
  });
  admin = await edge.mint({ scopes: ["admin"] });
  await edge.store.writer.append([
    putTenant({ id: "mallory", name: "Mallory", settings: { fail_open: false }, createdAt: 1 }),
  ]);
});
afterAll(() => edge.stop());

async function asked<T>(route: string, token: string, body: unknown): Promise<T> {
  const { status, text } = await ask(edge, route, { token, body });
  expectOf(status, `${route}: ${text}`).toBe(200);
  return JSON.parse(text) as T;
}

interface Granted {
  readonly id: string;
  readonly key: string;
}
const newKey = (body: object, token = admin): Promise<Granted> => asked<Granted>("POST /v1/keys", token, body);

describe("a revoked key", () => {
  test("takes with it the tokens that it minted, and those that they minted", async () => {
    const { id, key } = await newKey({ scope: "admin" });
    const kept = await newKey({ scope: "admin" });
    const live = { agent: "flight", mode: "live" };
    const byKey = await asked<{ token: string }>("POST /v1/tokens", key, { scopes: ["admin"] });
    const byToken = await asked<{ token: string }>("POST /v1/tokens", byKey.token, { scopes: ["admin"] });
    const calling = await asked<{ token: string }>("POST /v1/tokens", byToken.token, live);
    const another = await asked<{ token: string }>("POST /v1/tokens", kept.key, live);
    const reading = "GET /v1/models";
    for (const { token } of [byKey, byToken, calling, another]) {
      expect((await ask(edge, reading, { token })).status).toBe(200);
    }
    expect((await chat(edge, calling.token)).status).toBe(200);

    await asked(`POST /v1/keys/${id}/revoke`, admin, {});
    expectRefusal(await ask(edge, reading, { token: key }), 401);
    // The isolate that revoked them knows at once.
    for (const { token } of [byKey, byToken, calling]) expectRefusal(await ask(edge, reading, { token }), 401);
    await expect.poll(async () => (await chat(edge, calling.token)).status, { timeout: 4000 }).toBe(401);
    expect((await chat(edge, another.token)).status).toBe(200);
    expect((await ask(edge, reading, { token: another.token })).status).toBe(200);
    expect((await ask(edge, reading, { token: admin })).status).toBe(200);
  });

  test("of another tenant takes nothing", async () => {
    const mallory = await edge.mint({ scopes: ["admin"], tenantId: "mallory" });
    const { id, key } = await newKey({ scope: "admin" });
    const { token } = await asked<{ token: string }>("POST /v1/tokens", key, { scopes: ["read"] });
    expectRefusal(await ask(edge, `POST /v1/keys/${id}/revoke`, { token: mallory, body: {} }), 404);
    expect((await ask(edge, "GET /v1/policies", { token })).status).toBe(200);
  });
});

describe("a key for one agent", () => {
  const span = (rolloutId: string): object => ({
    resourceLogs: [
      {
        scopeLogs: [
          {
            logRecords: [
              {
                eventName: "gen_ai.evaluation.result",
                timeUnixNano: "1795264719000000000",
                attributes: [
                  { key: "fulgur.rollout_id", value: { stringValue: rolloutId } },
                  { key: "gen_ai.evaluation.name", value: { stringValue: "taste" } },
                  { key: "gen_ai.evaluation.score.value", value: { doubleValue: 1 } },
                ],
              },
            ],
          },
        ],
      },
    ],
  });

  test("speaks of that agent's rollouts alone: in telemetry, feedback, calls, tokens and Agent Lightning's routes", async () => {
    const { key } = await newKey({ scope: "agent", agent: "other" });
    const flight = await edge.rollout("live");
    const own = await asked<{ rollout_id: string }>("POST /v1/tokens", key, { agent: "other", mode: "live" });
    const rejected = await ask(edge, "POST /v1/logs", { token: key, body: span(flight.id) });
    expect(JSON.parse(rejected.text)).toMatchObject({ partialSuccess: { rejectedLogRecords: "1" } });
    const taken = await ask(edge, "POST /v1/logs", { token: key, body: span(own.rollout_id) });
    expect([taken.status, JSON.parse(taken.text)]).toEqual([200, {}]);
    for (const [route, body] of [
      ["POST /v1/feedback", { rollout_id: flight.id, value: 1 }],
      [`POST /v1/rollouts/${flight.id}/tool-results`, { tool_call_id: "c", tool: "t", succeeded: true }],
      ["POST /v1/tokens", { agent: "flight", mode: "live" }],
    ] as const) {
      expectRefusal(await ask(edge, route, { token: key, body }), 403);
    }
    const messages = [{ role: "user", content: "hi" }];
    const headers = { "x-fulgur-agent": "flight" };
    expectRefusal(
      await ask(edge, "POST /v1/chat/completions", { token: key, headers, body: { model: "any", messages } }),
      403,
    );
    await ask(edge, "POST /api/rollouts", { token: admin, body: [{ rollout_id: "agl-1", input: {} }] });
    for (const [route, body] of [
      ["POST /api/rollouts/agl-1/attempt/0/events", { event_type: "reward", data: { value: 1 } }],
      ["POST /proxy/rollout/agl-1/attempt/0/mode/train/openai/v1/chat/completions", { model: "flight@0", messages }],
    ] as const) {
      expect((await ask(edge, route, { token: key, body })).status).toBe(403);
    }
    expect((await edge.admin.readRollout(flight.id)).rewards).toEqual([]);
  });
});

describe("a key's rate", () => {
  test("holds on every route together, whatever header it comes in, and for that key alone", async () => {
    const limited = await newKey({ scope: "agent", agent: "flight", rate_per_minute: 3 });
    const free = await newKey({ scope: "agent", agent: "flight" });
    const body = { model: "any", messages: [{ role: "user", content: "hi" }] };
    const statuses = [
      await ask(edge, "POST /v1/chat/completions", { token: limited.key, body }),
      await ask(edge, "GET /v1/models", { headers: { "x-api-key": limited.key } }),
      await ask(edge, "POST /v1/messages", {
        headers: { authorization: `bearer ${limited.key}` },
        body: { ...body, max_tokens: 5 },
      }),
    ].map(({ status }) => status);
    expect(statuses).toEqual([200, 200, 200]);
    for (const route of ["POST /v1/chat/completions", "GET /v1/models", "POST /proxy/pause", "POST /api/rollouts"]) {
      const answer = await ask(edge, route, {
        token: limited.key,
        ...(route.startsWith("GET") ? {} : { body }),
      });
      expect([route, answer.status]).toEqual([route, 429]);
      expect(Number(answer.headers.get("retry-after"))).toBeGreaterThan(0);
    }
    expect((await chat(edge, free.key)).status).toBe(200);
  });
});

describe("a provider", () => {
  let server: Server;
  let base: string;
  const seen: string[] = [];
  beforeAll(async () => {
    // Serves responses to one of its customers alone.
    server = createServer((request, response) => {
      const { authorization = "", "x-api-key": apiKey } = request.headers;
      seen.push(`${request.url} ${authorization} ${String(apiKey)}`);
      request.resume();
      response.setHeader("content-type", "application/json");
      const isChat = request.url?.endsWith("/chat/completions") === true;
      if (!isChat && authorization.includes("sk-of-mallory")) {
        response.writeHead(404).end('{"error":{"message":"no such path"}}');
        return;
      }
      response.end(
        isChat
          ? '{"choices":[{"index":0,"message":{"role":"assistant","content":"as chat"},"finish_reason":"stop"}]}'
          : '{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"as responses"}]}]}',
      );
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  });
  afterAll(() => void server.close());

  test("is one tenant's: neither its key nor what was learned of it is another's", async () => {
    const mallory = await edge.mint({ scopes: ["admin"], tenantId: "mallory" });
    const said: string[] = [];
    for (const [token, key] of [
      [mallory, "sk-of-mallory-0123"],
      [admin, "sk-of-victim-0123"],
    ] as const) {
      await asked("PUT /v1/providers/shared", token, { base_url: base, key });
      await asked("POST /v1/agents/flight/models", token, { models: { frozen: "provider:shared/m" } });
      const session = await asked<{ token: string }>("POST /v1/tokens", token, { agent: "flight", mode: "live" });
      const body = { model: "frozen", input: "hi" };
      const { status, text } = await ask(edge, "POST /v1/responses", { token: session.token, body });
      expectOf(status, text).toBe(200);
      said.push(text);
    }
    expect(said[0]).toContain("as chat");
    expect(said[1]).toContain("as responses");
    expect(seen.filter((line) => line.includes("sk-of-victim")).map((line) => line.split(" ")[0])).toEqual([
      "/v1/responses",
    ]);
    // No token of ours goes there.
    expect(seen.filter((line) => line.includes("eyJ") || line.includes("fk_"))).toEqual([]);
  });

  test("is lent the edge's own key only where it is said which addresses may have it", async () => {
    const put = async (outbound: object): Promise<number> => {
      const parts = {
        config: { providerKeys: new Map([["OPENAI_API_KEY", "sk-of-the-operator"]]), outbound },
        now: () => 1,
        directory: { forget: () => undefined },
      };
      const app = new Hono<EdgeHono>()
        .onError((thrown) => errorResponse(thrown))
        .use(async (c, next) => {
          c.set("parts", parts as never);
          c.set("principal", { tenantId: "t", scopes: ["admin"], jti: "j", expiresAtSeconds: 1 });
          c.set("writer", { transact: async () => [] } as never);
          await next();
        })
        .route("/", providerRoutes);
      const body = JSON.stringify({ base_url: "https://api.example.com/v1", key_env: "OPENAI_API_KEY" });
      return (await app.request("/mine", { method: "PUT", body })).status;
    };
    expect(await put({ local: false })).toBe(400);
    expect(await put({ local: false, bases: ["https://other.example.com"] })).toBe(400);
    expect(await put({ local: false, bases: ["https://api.example.com/v1"] })).toBe(200);
    expect(await put({ local: true })).toBe(200);
  });
});
