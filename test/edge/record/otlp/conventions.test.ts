import { describe, expect, it } from "vitest";
import { evaluationOf, kindOf, toolOf } from "../../../../edge/record/otlp/conventions.ts";
import type { Attributes, TelemetrySpan } from "../../../../edge/record/otlp/telemetry.ts";

function span(name: string, attributes: Attributes, rest: Partial<TelemetrySpan> = {}): TelemetrySpan {
  return {
    traceId: "0".repeat(32),
    spanId: "0".repeat(16),
    parentId: null,
    name,
    startedAt: 1,
    finishedAt: 2,
    attributes,
    resource: {},
    events: [],
    failed: false,
    statusMessage: "",
    ...rest,
  };
}

describe("kindOf", () => {
  it.each([
    ["the current conventions", "chat gpt", { "gen_ai.operation.name": "chat" }, "llm"],
    ["a retrieval", "retrieval docs", { "gen_ai.operation.name": "retrieval" }, "retrieval"],
    ["an agent", "invoke_agent a", { "gen_ai.operation.name": "invoke_agent" }, "agent"],
    ["OpenInference", "x", { "openinference.span.kind": "RETRIEVER" }, "retrieval"],
    ["OpenLLMetry", "x", { "traceloop.span.kind": "workflow" }, "agent"],
    ["LangSmith", "x", { "langsmith.span.kind": "tool" }, "tool"],
    ["AI SDK 5", "ai.toolCall", {}, "tool"],
    ["a name alone", "execute_tool search", {}, "tool"],
    ["anything else", "GET /", {}, "other"],
  ] as const)("reads %s", (_, name, attributes, kind) => {
    expect(kindOf(span(name, attributes))).toBe(kind);
  });
});

describe("toolOf", () => {
  it("reads the current conventions, results as objects too", () => {
    const attributes = {
      "gen_ai.operation.name": "execute_tool",
      "gen_ai.tool.name": "search",
      "gen_ai.tool.call.id": "call_1",
      "gen_ai.tool.call.result": { flights: [] },
    };
    expect(toolOf(span("execute_tool search", attributes))).toEqual({
      toolCallId: "call_1",
      tool: "search",
      result: '{"flights":[]}',
      failed: false,
    });
  });

  it("reads AI SDK 5's names", () => {
    const attributes = { "ai.toolCall.name": "memory", "ai.toolCall.id": "c", "ai.toolCall.result": '"x"' };
    expect(toolOf(span("ai.toolCall", attributes))).toEqual({
      toolCallId: "c",
      tool: "memory",
      result: '"x"',
      failed: false,
    });
  });

  it("takes an ERROR status, error.type or an exception event as a failure", () => {
    const attributes = { "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t" };
    expect(toolOf(span("s", attributes, { failed: true }))?.failed).toBe(true);
    expect(toolOf(span("s", { ...attributes, "error.type": "E" }))?.failed).toBe(true);
    expect(toolOf(span("s", attributes, { events: [{ name: "exception", at: 1, attributes: {} }] }))?.failed).toBe(
      true,
    );
  });

  it("knows no tool without a name", () => {
    expect(toolOf(span("s", { "openinference.span.kind": "TOOL" }))).toBeUndefined();
  });
});

describe("evaluationOf", () => {
  const event = (attributes: Attributes): Parameters<typeof evaluationOf>[0] => ({
    name: "gen_ai.evaluation.result",
    at: 1,
    attributes,
  });

  it("prefers the score to the label", () => {
    const attributes = {
      "gen_ai.evaluation.score.value": 0.25,
      "gen_ai.evaluation.score.label": "pass",
      "gen_ai.response.id": "ca_1",
    };
    expect(evaluationOf(event(attributes))).toEqual({
      name: "evaluation",
      value: 0.25,
      explanation: null,
      responseId: "ca_1",
    });
  });

  it("makes 1 or 0 of a label that it knows", () => {
    expect(evaluationOf(event({ "gen_ai.evaluation.score.label": "Pass" }))).toMatchObject({ value: 1 });
    expect(evaluationOf(event({ "gen_ai.evaluation.score.label": "not_relevant" }))).toMatchObject({ value: 0 });
  });

  it("does not guess", () => {
    expect(evaluationOf(event({ "gen_ai.evaluation.score.label": "meh" }))).toBe("unreadable");
    expect(evaluationOf({ name: "exception", at: 1, attributes: {} })).toBeUndefined();
  });
});
