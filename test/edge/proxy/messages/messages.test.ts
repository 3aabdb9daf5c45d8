import { describe, expect, it } from "vitest";
import { FulgurError, type ErrorCode } from "#shared/errors.ts";
import { RetryLaterError } from "../../../../edge/http-errors.ts";
import { messagesDialect } from "../../../../edge/proxy/messages/messages.ts";
import type { Answer } from "../../../../edge/proxy/dialect.ts";

const history = (): never => {
  throw new Error("messages have no history");
};

async function whole(fields: object, answer: Partial<Answer>): Promise<unknown> {
  const body = { model: "flight", max_tokens: 64, messages: [{ role: "user", content: "hi" }], ...fields };
  const request = await messagesDialect.parse(JSON.stringify(body), { history });
  return request.whole({
    id: "ca_0199",
    startedAt: 1000,
    model: "flight",
    message: { content: null, reasoning: null, toolCalls: [] },
    finishReason: "stop",
    usage: { prompt_tokens: 11, completion_tokens: 7, total_tokens: 18 },
    logprobs: null,
    ...answer,
  });
}

describe("a whole answer in Anthropic's form", () => {
  it("has text, parsed tool inputs, a stop reason and usage", async () => {
    const answer = {
      finishReason: "tool_calls",
      message: {
        content: "Adding.",
        reasoning: "easy",
        toolCalls: [
          { id: "call_a", type: "function" as const, function: { name: "add", arguments: '{"a":1}' } },
          { id: "call_b", type: "function" as const, function: { name: "now", arguments: "" } },
          { id: "call_c", type: "function" as const, function: { name: "add", arguments: '{"a":' } },
        ],
      },
    };
    const tools = [
      { type: "tool_use", id: "call_a", name: "add", input: { a: 1 } },
      { type: "tool_use", id: "call_b", name: "now", input: {} },
      { type: "tool_use", id: "call_c", name: "add", input: { unparsed_arguments: '{"a":' } },
    ];
    const text = { type: "text", text: "Adding.", citations: null };
    expect(await whole({}, answer)).toEqual({
      id: "msg_0199",
      type: "message",
      role: "assistant",
      model: "flight",
      content: [text, ...tools],
      stop_reason: "tool_use",
      stop_sequence: null,
      usage: { input_tokens: 11, output_tokens: 7, cache_creation_input_tokens: 0, cache_read_input_tokens: 0 },
    });
    expect(await whole({ thinking: { type: "adaptive" } }, answer)).toMatchObject({
      content: [{ type: "thinking", thinking: "easy", signature: "" }, text, ...tools],
    });
  });

  it.each([
    ["stop", "end_turn"],
    ["length", "max_tokens"],
    ["tool_calls", "tool_use"],
    ["content_filter", "refusal"],
    ["something new", "end_turn"],
  ])("that ended with %s stopped for %s", async (finishReason, wanted) => {
    expect(await whole({}, { finishReason })).toMatchObject({ stop_reason: wanted, content: [] });
  });
});

describe("a failure in Anthropic's form", () => {
  it.each<[ErrorCode, number, string]>([
    ["ERR_INVALID_REQUEST", 400, "invalid_request_error"],
    ["ERR_AUTH", 401, "authentication_error"],
    ["ERR_FORBIDDEN", 403, "permission_error"],
    ["ERR_UNKNOWN_POLICY", 404, "not_found_error"],
    ["ERR_TOO_LARGE", 413, "request_too_large"],
    ["ERR_OVERLOADED", 429, "rate_limit_error"],
    ["ERR_UPSTREAM", 502, "api_error"],
    ["ERR_STORE", 503, "overloaded_error"],
    ["ERR_TIMEOUT", 504, "timeout_error"],
  ])("%s is %i %s", async (code, status, type) => {
    const response = messagesDialect.errorResponse(new FulgurError(code, "why"));
    expect(response.status).toBe(status);
    const body = (await response.json()) as { request_id: string };
    expect(body).toEqual({
      type: "error",
      error: { type, message: "why" },
      request_id: expect.stringMatching(/^req_/) as string,
    });
    expect(response.headers.get("request-id")).toBe(body.request_id);
  });

  it("says when to come again", () => {
    const later = new RetryLaterError("ERR_STORE", "away", { retryAfterSeconds: 7 });
    expect(messagesDialect.errorResponse(later).headers.get("retry-after")).toBe("7");
  });
});
