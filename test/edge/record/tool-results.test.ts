import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { chatToolResults, recordedToolResults, toolCallsOf } from "../../../edge/record/tool-results.ts";

const call = (id: string, name: string) => ({ id, type: "function", function: { name, arguments: "{}" } });

describe("chatToolResults", () => {
  it("uses the newest name where two calls share an id", () => {
    const messages = [
      { role: "assistant", tool_calls: [call("c1", "memory")] },
      { role: "tool", tool_call_id: "c1", content: "a" },
      { role: "assistant", tool_calls: [call("c1", "search")] },
      { role: "tool", tool_call_id: "c1", content: "b" },
    ];
    expect(chatToolResults(messages).map(({ tool, text }) => [tool, text])).toEqual([
      ["memory", "a"],
      ["search", "b"],
    ]);
  });
});

describe("recordedToolResults", () => {
  it("reads each dialect's own form", () => {
    const responses = {
      input: [
        { role: "user", content: "Book." },
        { type: "function_call", call_id: "c1", name: "memory", arguments: "{}" },
        { type: "function_call_output", call_id: "c1", output: "noon" },
        { type: "function_call_output", call_id: "c0", output: [{ type: "input_text", text: "two" }] },
      ],
    };
    expect(recordedToolResults("responses", responses, new Map([["c0", "search"]]))).toEqual([
      { toolCallId: "c1", tool: "memory", text: "noon", failed: false },
      { toolCallId: "c0", tool: "search", text: "two", failed: false },
    ]);
    const messages = {
      messages: [
        { role: "user", content: "Book." },
        { role: "assistant", content: [{ type: "tool_use", id: "t1", name: "memory", input: {} }] },
        {
          role: "user",
          content: [
            { type: "tool_result", tool_use_id: "t1", is_error: true, content: [{ type: "text", text: "no" }] },
            { type: "text", text: "go on" },
          ],
        },
      ],
    };
    expect(recordedToolResults("messages", messages)).toEqual([
      { toolCallId: "t1", tool: "memory", text: "no", failed: true },
    ]);
    const chat = { messages: [{ role: "tool", tool_call_id: "c9", name: "search", content: "x" }] };
    expect(recordedToolResults("chat", chat)).toEqual([{ toolCallId: "c9", tool: "search", text: "x", failed: false }]);
  });

  it("skips what it does not know, whatever it is", () => {
    fc.assert(
      fc.property(fc.constantFrom("chat", "responses", "messages", "completions"), fc.jsonValue(), (dialect, value) => {
        expect(recordedToolResults(dialect, value)).toEqual([]);
        expect(recordedToolResults(dialect, { messages: value, input: value })).toEqual([]);
      }),
    );
  });
});

describe("toolCallsOf", () => {
  it("lists an answer's tools in order, and none where there are none", () => {
    const message = { role: "assistant", content: null, tool_calls: [call("a", "search"), null, call("b", "memory")] };
    expect(toolCallsOf(message)).toEqual([
      { id: "a", name: "search" },
      { id: "b", name: "memory" },
    ]);
    expect(toolCallsOf({ role: "assistant", content: "Booked." })).toEqual([]);
    expect(toolCallsOf(null)).toEqual([]);
  });
});
