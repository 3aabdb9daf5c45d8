import { describe, expect, it } from "vitest";
import { readResponse } from "../../../../edge/proxy/responses/reader.ts";

const call = { type: "function_call", id: "fc_1", call_id: "c1", name: "f", arguments: "{}" };

describe("readResponse", () => {
  it("reads text, reasoning, calls and model of a whole answer", () => {
    expect(
      readResponse({
        status: "completed",
        model: "gpt",
        output: [
          { type: "reasoning", summary: [{ type: "summary_text", text: "in short" }], content: [] },
          { type: "web_search_call", id: "ws_1" },
          {
            type: "message",
            role: "assistant",
            content: [
              { type: "output_text", text: "a" },
              { type: "refusal", refusal: "b" },
            ],
          },
          call,
        ],
      }),
    ).toEqual({
      message: {
        content: "ab",
        reasoning: "in short",
        toolCalls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
      },
      finishReason: "tool_calls",
      model: "gpt",
    });
  });

  it("makes do with the least that a provider may answer", () => {
    const least = { finishReason: "stop", model: null };
    expect(readResponse({ output: [{ content: [{ text: "hi" }] }] })).toEqual({
      ...least,
      message: { content: "hi", reasoning: null, toolCalls: [] },
    });
    expect(readResponse({ output_text: "hi" })).toEqual({
      ...least,
      message: { content: "hi", reasoning: null, toolCalls: [] },
    });
    expect(
      readResponse({ output: [{ type: "function_call", name: "f", arguments: { a: 1 } }] }).message.toolCalls,
    ).toEqual([{ id: "", type: "function", function: { name: "f", arguments: '{"a":1}' } }]);
    expect(readResponse({})).toEqual({ ...least, message: { content: null, reasoning: null, toolCalls: [] } });
  });

  it.each([
    [{ status: "incomplete", incomplete_details: { reason: "max_output_tokens" } }, "length"],
    [{ status: "incomplete", incomplete_details: { reason: "content_filter" } }, "content_filter"],
    [{ status: "incomplete" }, "length"],
    [{ status: "failed" }, null],
    [{ status: "in_progress" }, null],
    [{ status: "completed", incomplete_details: null }, "stop"],
  ])("reads %j as the finish reason %s", (fields, wanted) => {
    expect(readResponse({ output: [], ...fields }).finishReason).toBe(wanted);
  });
});
