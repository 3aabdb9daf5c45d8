import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { JWK } from "jose";
import { APIConnectionError, APIConnectionTimeoutError, APIError } from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { mintToken, newSigningKey, publicKeys, type KeySet, type MintOptions } from "#shared/tokens.ts";
import { agentWorker, type Agent } from "../../../edge/agents/wrapper.ts";

function post(agent: Agent<object>, change: { headers?: Record<string, string>; body?: string; path?: string } = {}) {
  const { headers = {}, body = '{"input": {"n": 1}}', path = "/run" } = change;
  const request = new Request(`http://agent.internal${path}`, {
    method: "POST",
    headers: { authorization: "Bearer key-1", "x-llm-base-url": "http://edge/v1", ...headers },
    body,
  });
  return agentWorker(agent).fetch(request, { OWN: "binding" });
}

describe("agentWorker", () => {
  it("runs the agent with its input and an environment that SDKs read", async () => {
    const seen: unknown[] = [];
    const response = await post((input, env) => {
      seen.push(input, env);
      return Promise.resolve("done");
    });
    expect(await response.json()).toEqual({ result: "done" });
    expect(seen).toEqual([
      { n: 1 },
      {
        OWN: "binding",
        OPENAI_BASE_URL: "http://edge/v1",
        OPENAI_API_KEY: "key-1",
        OPENAI_AGENTS_DISABLE_TRACING: "1",
      },
    ]);
  });

  it("tells failures that another try may mend from the agent's own", async () => {
    const api = (status: number) => APIError.generate(status, { message: "m" }, "m", new Headers());
    const named = Object.assign(new Error("m"), { name: "TimeoutError" });
    const cases: readonly (readonly [unknown, number, string])[] = [
      [api(500), 502, "upstream_failed"],
      [api(503), 502, "upstream_failed"],
      [api(429), 502, "upstream_failed"],
      [api(408), 502, "upstream_failed"],
      [new APIConnectionError({ message: "refused" }), 502, "upstream_failed"],
      [new APIConnectionTimeoutError(), 502, "upstream_failed"],
      [{ statusCode: 529 }, 502, "upstream_failed"],
      [named, 502, "upstream_failed"],
      [api(400), 500, "agent_failed"],
      [api(403), 500, "agent_failed"],
      [new TypeError("x is not a function"), 500, "agent_failed"],
      ["a text", 500, "agent_failed"],
    ];
    for (const [thrown, status, reason] of cases) {
      // What agents throw is not always an Error.
      // oxlint-disable-next-line prefer-promise-reject-errors
      const response = await post(() => Promise.reject(thrown));
      expect(response.status).toBe(status);
      expect(await response.json()).toMatchObject({ error: { reason } });
    }
  });

  it("refuses what is not a run, without running anything", async () => {
    const agent = () => Promise.reject(new Error("was run"));
    expect((await post(agent, { path: "/" })).status).toBe(404);
    expect((await post(agent, { headers: { authorization: "Basic abc" } })).status).toBe(400);
    expect((await agentWorker(agent).fetch(new Request("http://agent.internal/run"), {})).status).toBe(404);
    const response = await post(agent, { body: "{" });
    expect(response.status).toBe(500);
    expect(await response.text()).not.toContain("was run");
  });
});

describe("agentWorker with EDGE_URL", () => {
  const signing = { keys: [] as JWK[] };
  let server: Server;
  let edgeUrl: string;
  let asked = 0;
  beforeAll(async () => {
    signing.keys.push(await newSigningKey());
    server = createServer((_request, response) => {
      asked++;
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify(publicKeys(signing)));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    edgeUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterAll(() => server.close());

  const rollout = {
    rolloutId: "ro_1",
    attempt: 1,
    agent: "flight",
    mode: "train",
    pin: null,
    caps: { maxCalls: 1, maxTokens: 1 },
  } as const;
  const mint = async (more: Partial<MintOptions> = {}, keys: KeySet = signing): Promise<string> =>
    (await mintToken(keys, { tenantId: "default", scopes: ["call"], rollout, ...more })).token;

  let runs = 0;
  function run(key: string, baseUrl = `${edgeUrl}/v1`, edge = edgeUrl): Promise<Response> {
    const request = new Request("http://agent.internal/run", {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "x-llm-base-url": baseUrl },
      body: '{"input": 1}',
    });
    const agent = () => Promise.resolve(`run ${++runs}`);
    return agentWorker(agent).fetch(request, { EDGE_URL: edge });
  }

  it("takes the edge's rollout tokens, and asks for its keys once", async () => {
    expect(await (await run(await mint())).json()).toEqual({ result: "run 1" });
    expect(await (await run(await mint())).json()).toEqual({ result: "run 2" });
    expect(asked).toBe(1);
  });

  it("refuses every other caller before the agent runs", async () => {
    const before = runs;
    const foreign = { keys: [await newSigningKey()] };
    const [header = "", claims = ""] = (await mint()).split(".");
    const none = btoa('{"alg":"none","typ":"JWT"}').replaceAll("=", "");
    const { rollout: _none, ...scoped } = { tenantId: "default", scopes: ["admin"] as const, rollout };
    const keys = [
      "key-1",
      await mint({}, foreign),
      `${header}.${claims}.${"A".repeat(86)}`,
      `${none}.${claims}.`,
      await mint({ now: Date.now() - 3_600_000 }),
      (await mintToken(signing, scoped)).token,
    ];
    for (const key of keys) {
      const response = await run(key);
      expect([key, response.status]).toEqual([key, 401]);
      expect(await response.text()).not.toContain(key);
    }
    const elsewhere = await run(await mint(), "https://elsewhere.example/v1");
    expect([elsewhere.status, await elsewhere.text()]).toEqual([401, expect.stringContaining("another address")]);
    expect(runs).toBe(before);
  });

  it("is to be asked again where the edge's keys cannot be had", async () => {
    const gone = "http://127.0.0.1:1";
    const response = await run(await mint(), `${gone}/v1`, gone);
    expect(response.status).toBe(502);
    expect(await response.json()).toMatchObject({ error: { reason: "upstream_failed" } });
  });
});
