import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { MockAnswer } from "../support/mock-inference.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ANSWER, TOOL_ARGUMENTS, type Framework } from "./framework.ts";
import { startMinimalUpstream, type MinimalUpstream } from "./minimal-upstream.ts";

/**
 * What every agent framework must be able to do against the edge, unchanged: a run of two turns with a tool between them,
 * streamed and not, answered by a policy and by a frozen provider that leaves out whatever it can.
 */

const calculating: MockAnswer = (request) => {
  const messages: unknown = request["messages"];
  const answered = Array.isArray(messages) && messages.some((message: { role?: string }) => message.role === "tool");
  return answered
    ? { tokens: ["The sum ", "is ", "42."] }
    : {
        tokens: ["<call>"],
        toolCalls: [{ id: "", name: "calculator", arguments: JSON.stringify(TOOL_ARGUMENTS) }],
      };
};

/** Runs the suite for some frameworks against one edge; each test file calls it once. */
export function describeFrameworks(frameworks: readonly Framework[]): void {
  let edge: TestEdge;
  let upstream: MinimalUpstream;
  beforeAll(async () => {
    upstream = await startMinimalUpstream();
    edge = await startTestEdge({
      answer: calculating,
      agents: {
        flight: { policy: "flight", tools: { calculator: 0.5 }, models: { frozen: "provider:minimal/their-model" } },
      },
    });
    const admin = await edge.mint({ scopes: ["admin"] });
    const added = await fetch(`${edge.url}/v1/providers/minimal`, {
      method: "PUT",
      headers: { authorization: `Bearer ${admin}`, "content-type": "application/json" },
      body: JSON.stringify({ base_url: `${upstream.url}/v1`, key: "sk-theirs" }),
    });
    expect([added.status, await added.text()]).toEqual([200, expect.any(String)]);
  });
  afterAll(async () => {
    await edge.stop();
    await upstream.stop();
  });

  describe.each(frameworks)("$name against the edge", ({ dialect, run }) => {
    const cases = [true, false].flatMap((stream) => ["flight", "frozen"].map((model) => [model, stream] as const));
    it.each(cases)("runs its tool and ends with the answer: model %s, streamed %s", async (model, stream) => {
      const { id, token } = await edge.rollout();
      const inputs: unknown[] = [];
      const text = await run({
        baseUrl: `${edge.url}/v1`,
        origin: edge.url,
        apiKey: token,
        model,
        stream,
        calculator(input) {
          inputs.push(input);
          return input.a + input.b;
        },
      });
      expect(inputs).toEqual([TOOL_ARGUMENTS]);
      expect(text).toBe(ANSWER);

      const asked = model === "flight" ? edge.inference.requests : upstream.requests.map(({ body }) => body);
      expect(asked.slice(-2).map((request) => request.stream ?? false)).toEqual([stream, stream]);
      const { calls, rewards } = await edge.admin.readRollout(id);
      const isPolicy = model === "flight";
      const common = {
        dialect,
        modelAsked: model,
        httpStatus: 200,
        trainable: isPolicy,
        error: isPolicy ? null : "frozen",
        role: isPolicy ? "main" : model,
      };
      expect(calls).toMatchObject([
        { ...common, finishReason: "tool_calls" },
        { ...common, finishReason: "stop", response: { content: ANSWER } },
      ]);
      expect(calls[0]?.response).toMatchObject({
        tool_calls: [{ function: { name: "calculator", arguments: JSON.stringify(TOOL_ARGUMENTS) } }],
      });
      expect(rewards).toMatchObject([{ source: "air", name: "calculator", value: 0.5 }]);
    });
  });
}
