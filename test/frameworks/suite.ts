import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { z } from "zod";
import type { MockAnswer } from "../support/mock-inference.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ANSWER, STRUCTURED, TOOL_ARGUMENTS, type Framework, type FrameworkRun } from "./framework.ts";
import { FORM_TOOL, hasFormTool, startMinimalUpstream, type Asked, type MinimalUpstream } from "./minimal-upstream.ts";

/**
 * What every agent framework must be able to do against the edge, unchanged: runs with a tool and answers in a form,
 * streamed and not, answered by a policy, by a frozen provider that leaves out whatever it can, and by one that heeds
 * neither the path nor whether a stream is wanted.
 */

/** The names that the agent asks for, and what is behind them. */
const MODELS = ["flight", "frozen", "heedless"] as const;
const CASES = [true, false].flatMap((stream) => MODELS.map((model) => [model, stream] as const));
const RUNS = [1, 2].flatMap((callsAtOnce) => CASES.map((each) => [callsAtOnce, ...each] as const));

function calculating(callsAtOnce: number): MockAnswer {
  return (request) => {
    const form = JSON.stringify(STRUCTURED);
    if (request["response_format"] !== undefined) return { tokens: [form.slice(0, 4), form.slice(4)] };
    if (hasFormTool(request["tools"]))
      return { tokens: ["<call>"], toolCalls: [{ id: "", name: FORM_TOOL, arguments: form }] };
    const messages: unknown = request["messages"];
    const answered = Array.isArray(messages) && messages.some((message: { role?: string }) => message.role === "tool");
    if (answered) return { tokens: ["The sum ", "is ", "42."] };
    const call = { id: "", name: "calculator", arguments: JSON.stringify(TOOL_ARGUMENTS) };
    return { tokens: ["<call>"], toolCalls: Array.from({ length: callsAtOnce }, () => call) };
  };
}

/** Runs the suite for some frameworks against one edge; each test file calls it once. */
export function describeFrameworks(frameworks: readonly Framework[]): void {
  let edge: TestEdge;
  let upstreams: Readonly<Record<"frozen" | "heedless", MinimalUpstream>>;
  beforeAll(async () => {
    upstreams = { frozen: await startMinimalUpstream(), heedless: await startMinimalUpstream({ isHeedless: true }) };
    edge = await startTestEdge({
      agents: {
        flight: {
          policy: "flight",
          tools: { calculator: 0.5 },
          models: { frozen: "provider:frozen/their-model", heedless: "provider:heedless/their-model" },
        },
      },
    });
    const admin = await edge.mint({ scopes: ["admin"] });
    for (const [name, upstream] of Object.entries(upstreams)) {
      const added = await fetch(`${edge.url}/v1/providers/${name}`, {
        method: "PUT",
        headers: { authorization: `Bearer ${admin}`, "content-type": "application/json" },
        body: JSON.stringify({ base_url: `${upstream.url}/v1`, key: "sk-theirs" }),
      });
      expect([added.status, await added.text()]).toEqual([200, expect.any(String)]);
    }
  });
  afterAll(async () => {
    await edge.stop();
    for (const upstream of Object.values(upstreams)) await upstream.stop();
  });
  beforeEach(() => callAtOnce(1));

  function callAtOnce(calls: number): void {
    edge.inference.answer = calculating(calls);
    for (const upstream of Object.values(upstreams)) upstream.callsAtOnce = calls;
  }

  function pointedAt(
    model: string,
    { token, stream }: { token: string; stream: boolean },
  ): Omit<FrameworkRun, "calculator"> {
    return { baseUrl: `${edge.url}/v1`, origin: edge.url, apiKey: token, model, stream };
  }

  /** What the model behind a name was asked as a chat. */
  function askedOf(model: (typeof MODELS)[number]): readonly Asked[] {
    if (model === "flight") return edge.inference.requests;
    return upstreams[model].requests.filter(({ path }) => path === "/v1/chat/completions").map(({ body }) => body);
  }

  const callOf = (framework: Framework, model: string): object => {
    const isPolicy = model === "flight";
    return {
      dialect: framework.dialect,
      modelAsked: model,
      httpStatus: 200,
      trainable: isPolicy,
      error: isPolicy ? null : "frozen",
      role: isPolicy ? "main" : model,
    };
  };

  describe.each(frameworks)("$name against the edge", (framework) => {
    const { run, structured } = framework;

    it.each(RUNS)(
      "runs its tool, called %s at once, and ends with the answer: model %s, streamed %s",
      async (callsAtOnce, model, stream) => {
        callAtOnce(callsAtOnce);
        const { id, token } = await edge.rollout();
        const inputs: unknown[] = [];
        const text = await run({
          ...pointedAt(model, { token, stream }),
          calculator(input) {
            inputs.push(input);
            return input.a + input.b;
          },
        });
        const times = Array.from({ length: callsAtOnce });
        expect(inputs).toEqual(times.map(() => TOOL_ARGUMENTS));
        expect(text).toBe(ANSWER);

        const asked = askedOf(model).slice(-2);
        expect(asked.map((request) => request.stream ?? false)).toEqual([stream, stream]);
        const { calls, rewards } = await edge.admin.readRollout(id);
        const common = callOf(framework, model);
        expect(calls).toMatchObject([
          { ...common, finishReason: "tool_calls" },
          { ...common, finishReason: "stop", response: { content: ANSWER } },
        ]);
        expect(calls[0]?.response).toMatchObject({
          tool_calls: times.map(() => ({
            function: { name: "calculator", arguments: JSON.stringify(TOOL_ARGUMENTS) },
          })),
        });
        expect(rewards).toMatchObject(times.map(() => ({ source: "air", name: "calculator", value: 0.5 })));
      },
    );

    it.runIf(structured !== undefined).each(CASES)(
      "gets an answer in the form that it asked for: model %s, streamed %s",
      async (model, stream) => {
        const { id, token } = await edge.rollout();
        expect(await structured?.(pointedAt(model, { token, stream }))).toEqual(STRUCTURED);
        expect(formIn(askedOf(model).at(-1))).toMatchObject({
          properties: { sum: { type: "number" } },
          required: ["sum"],
        });
        const { calls } = await edge.admin.readRollout(id);
        expect(calls).toMatchObject([callOf(framework, model)]);
        expect(saidIn(calls[0]?.response)).toEqual(STRUCTURED);
      },
    );
  });
}

/** The JSON schema that a chat is to answer in; a tool's where the framework makes a tool of it. */
function formIn(asked: Asked | undefined): unknown {
  return asked?.response_format?.json_schema?.schema ?? asked?.tools?.[0]?.function.parameters;
}

/** What a recorded answer says, as an object. */
function saidIn(response: unknown): unknown {
  const { content, tool_calls: calls } = answerSchema.parse(response);
  return JSON.parse(calls?.[0]?.function.arguments ?? content ?? "null");
}

const answerSchema = z.looseObject({
  content: z.string().nullable(),
  tool_calls: z.array(z.looseObject({ function: z.looseObject({ arguments: z.string() }) })).optional(),
});
