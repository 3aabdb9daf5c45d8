import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { usageReportSchema } from "#shared/wire-metering.ts";
import { startTestEdge, type TestEdge } from "../../support/edge.ts";
import { json, startMockProvider, type MockProvider } from "../../support/provider.ts";

/** What stops a call before it is made: the tenant's money, and a key's rate. A sampled token of a policy costs 1. */
let edge: TestEdge;
let provider: MockProvider;
let admin: string;
beforeAll(async () => {
  provider = await startMockProvider();
  provider.answer = ({ path }, response) =>
    json(
      response,
      path.endsWith("/embeddings")
        ? { object: "list", data: [{ embedding: [0.5] }], usage: { prompt_tokens: 3, total_tokens: 3 } }
        : {
            model: "gpt-9-2026",
            choices: [{ index: 0, message: { role: "assistant", content: "hi" }, finish_reason: "stop" }],
            usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
          },
    );
  edge = await startTestEdge({
    agents: { flight: { policy: "flight", models: { frozen: "provider:theirs/gpt-9" } } },
  });
  admin = await edge.mint({ scopes: ["admin"] });
  await send("PUT", "/v1/providers/theirs", { base_url: provider.baseUrl, key: "sk-theirs" });
  for (const model of ["flight", "theirs/gpt-9"]) {
    await send("PUT", "/v1/prices", { model, prompt_per_million: 0, completion_per_million: 1e6, from: "2026-01-01" });
  }
});
afterAll(async () => {
  await edge.stop();
  await provider.stop();
});

async function send(method: string, path: string, body: unknown): Promise<void> {
  const response = await fetch(`${edge.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${admin}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  expect([response.status, await response.text()]).toEqual([expect.toBeOneOf([200, 201]), expect.any(String)]);
}

async function usage(query = ""): Promise<ReturnType<typeof usageReportSchema.parse>> {
  const response = await fetch(`${edge.url}/v1/usage${query}`, { headers: { authorization: `Bearer ${admin}` } });
  return usageReportSchema.parse(await response.json());
}

const chat = { model: "any", messages: [{ role: "user", content: "hi" }], max_tokens: 4 };
const requests = {
  "/v1/chat/completions": chat,
  "/v1/completions": { model: "any", prompt: "hi", max_tokens: 4 },
  "/v1/responses": { model: "any", input: "hi", max_output_tokens: 4 },
  "/v1/messages": chat,
};
const openAiError = { error: { type: "insufficient_quota", code: "ERR_BUDGET" } };
const anthropicError = { type: "error", error: { type: "billing_error" } };

describe("a tenant's monthly budget", () => {
  it("stops nothing where there is none", async () => {
    const { token } = await edge.rollout();
    expect((await edge.post("/v1/chat/completions", token, chat)).status).toBe(200);
    expect(await usage()).toMatchObject({ totals: { calls: 1, cost: 2 }, budget: null });
  });

  it("lets of a burst begin what it covers, takes what was used, and refuses with 402 what comes after", async () => {
    await send("PATCH", "/v1/tenant", { monthly_budget: 12 });
    const { token } = await edge.rollout();
    const gate = Promise.withResolvers<void>();
    const begun = edge.inference.requests.length;
    edge.inference.answer = async () => {
      await gate.promise;
      return { tokens: ["Hel", "lo"] };
    };
    // 2 of 12 are spent and each may take 4: two can begin, whatever the others do.
    const burst = Array.from({ length: 6 }, () => edge.post("/v1/chat/completions", token, chat));
    const early = await Promise.race(burst);
    expect(early.status).toBe(402);
    expect(await early.json()).toMatchObject(openAiError);
    gate.resolve();
    const statuses = (await Promise.all(burst)).map(({ status }) => status).toSorted((a, b) => a - b);
    expect(statuses).toEqual([200, 200, 402, 402, 402, 402]);
    expect(edge.inference.requests.length - begun).toBe(2);
    // 6 are spent: streams are held to it as well, at their end too.
    const streamed = await edge.post("/v1/chat/completions", token, { ...chat, stream: true });
    expect(await streamed.text()).toContain("[DONE]");
    expect((await edge.post("/v1/responses", token, requests["/v1/responses"])).status).toBe(200);
    expect((await usage()).budget).toEqual({ monthly: 12, spent: 10 });
  });

  it.each(Object.entries(requests))("refuses %s in its dialect's words, streaming or not", async (path, body) => {
    const { token } = await edge.rollout();
    const begun = edge.inference.requests.length;
    for (const stream of [false, true]) {
      const refused = await edge.post(path, token, { ...body, stream });
      expect(refused.status).toBe(402);
      expect(refused.headers.get("content-type")).toContain("application/json");
      expect(await refused.json()).toMatchObject(path === "/v1/messages" ? anthropicError : openAiError);
    }
    expect(edge.inference.requests.length).toBe(begun);
  });

  it("holds for providers as for policies, and lets pass what costs nothing", async () => {
    const { token } = await edge.rollout();
    const refused = await edge.post("/v1/chat/completions", token, { ...chat, model: "frozen" });
    expect([refused.status, await refused.json()]).toMatchObject([402, openAiError]);
    expect(provider.requests).toEqual([]);
    // The prompt has no price, and an embedding has nothing else.
    const free = await edge.post("/v1/embeddings", token, { model: "frozen", input: "hi" });
    expect([free.status, await free.text()]).toEqual([200, expect.stringContaining("0.5")]);
    const small = await edge.post("/v1/chat/completions", token, { ...chat, model: "frozen", max_tokens: 2 });
    expect(small.status).toBe(200);
    expect((await usage()).budget).toEqual({ monthly: 12, spent: 12 });
  });

  it("counts a request that names no limit as a long one", async () => {
    await send("PATCH", "/v1/tenant", { monthly_budget: 1000 });
    const { token } = await edge.rollout();
    expect((await edge.post("/v1/chat/completions", token, chat)).status).toBe(200);
    const { max_tokens: _, ...unlimited } = chat;
    const refused = await edge.post("/v1/chat/completions", token, unlimited);
    expect([refused.status, await refused.text()]).toEqual([402, expect.stringContaining("may take 4096.0000")]);
  });

  it("is told with what was spent on what: by day and model, by policy, by agent, by rollout", async () => {
    const report = await usage("?rollouts=10");
    expect(report.models).toEqual([
      { model: "flight", calls: 6, prompt_tokens: 30, completion_tokens: 12, cost: 12 },
      { model: "theirs/gpt-9", calls: 2, prompt_tokens: 6, completion_tokens: 2, cost: 2 },
    ]);
    expect(report.usage.map(({ model, cost }) => [model, cost])).toEqual([
      ["flight@0", 12],
      ["theirs/gpt-9", 2],
    ]);
    expect(report.rollouts.reduce((sum, { calls }) => sum + calls, 0)).toBe(8);
    expect(report.rollouts.map(({ cost }) => cost)).toContain(8);
    expect(report.agents).toMatchObject([{ agent: "flight", mode: "train", invocations: 8 }]);
    expect(report.totals).toMatchObject({ calls: 8, cost: 14, agent_invocations: 8, wall_ms: 0 });
    expect(report.budget).toEqual({ monthly: 1000, spent: 14 });
  });
});

describe("a key's rate", () => {
  it.each(Object.keys(requests))("holds on %s: 429 in its dialect's words, with when to come back", async (path) => {
    const response = await edge.post("/v1/keys", admin, { scope: "agent", agent: "flight", rate_per_minute: 1 });
    const { key } = (await response.json()) as { key: string };
    const body = requests[path as keyof typeof requests];
    const first = await edge.post(path, key, body);
    expect([first.status, await first.text()]).toEqual([200, expect.any(String)]);
    const limited = await edge.post(path, key, body);
    expect(limited.status).toBe(429);
    expect(Number(limited.headers.get("retry-after"))).toBeGreaterThan(40);
    expect(await limited.json()).toMatchObject({ error: { type: "rate_limit_error" } });
  });
});
