import { APIConnectionError, APIConnectionTimeoutError, APIError } from "openai";
import { describe, expect, it } from "vitest";
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
