import { describe, expect, it } from "vitest";
import { askAgent, type AgentService } from "../../../edge/dispatch/invoke.ts";

const REQUEST = { input: { n: 1 }, token: "the-token", llmBaseUrl: "http://127.0.0.1:8787/v1" };

function answering(status: number, body: string): AgentService {
  return { fetch: () => Promise.resolve(new Response(body, { status })) };
}

const ask = (service: AgentService) => askAgent(service, REQUEST, new AbortController().signal);

describe("askAgent", () => {
  it("posts the input with the token as key and the base URL beside it", async () => {
    const requests: Request[] = [];
    const answer = await ask({
      fetch: (url, init) => {
        requests.push(new Request(url, init));
        return Promise.resolve(Response.json({ result: "done" }));
      },
    });
    expect(answer).toEqual({ type: "answered", result: "done" });
    const [request] = requests;
    expect(request?.method).toBe("POST");
    expect(new URL(request?.url ?? "").pathname).toBe("/run");
    expect(request?.headers.get("authorization")).toBe("Bearer the-token");
    expect(request?.headers.get("x-llm-base-url")).toBe("http://127.0.0.1:8787/v1");
    expect(await request?.json()).toEqual({ input: { n: 1 } });
  });

  it("takes an agent that ends without a word at its word", async () => {
    expect(await ask(answering(200, '{"result": null}'))).toEqual({ type: "answered", result: null });
  });

  it("tells upstream failures from the agent's own", async () => {
    const upstream = '{"error": {"message": "503", "reason": "upstream_failed"}}';
    expect(await ask(answering(502, upstream))).toEqual({ type: "broken", error: "503", reason: "upstream_failed" });
    const other = '{"error": {"message": "oops", "reason": "bad_luck"}}';
    expect(await ask(answering(500, other))).toEqual({ type: "broken", error: "oops", reason: "agent_failed" });
  });

  it("counts whatever else comes as a failure of the agent, and says what came", async () => {
    const cases: readonly (readonly [number, string, RegExp])[] = [
      [200, "fine", /answered 200 without \{"result": text\}: fine/],
      [200, '{"result": 3}', /answered 200/],
      [200, '{"error": {"message": "x", "reason": "upstream_failed"}}', /answered 200/],
      [500, "Internal Server Error", /answered 500/],
      [200, JSON.stringify({ result: "x".repeat(1_000_001) }), /more than 1000000 bytes/],
    ];
    for (const [status, body, message] of cases) {
      const answer = await ask(answering(status, body));
      expect(answer).toEqual({ type: "broken", reason: "agent_failed", error: expect.stringMatching(message) });
    }
    expect(await ask({ fetch: () => Promise.reject(new Error("no such Worker")) })).toEqual({
      type: "broken",
      reason: "agent_failed",
      error: "the agent failed: no such Worker",
    });
  });
});
