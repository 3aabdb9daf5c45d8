import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { messagesEncoder } from "../../../../edge/proxy/messages/stream.ts";

const head = { id: "ca_0199", startedAt: 1000, model: "flight" };
const usage = { prompt_tokens: 11, completion_tokens: 7, total_tokens: 18 };

/** The events' data; each event's name must be its type, or Anthropic's clients pass over it. */
function read(text: string): { type: string; [field: string]: unknown }[] {
  return text
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => {
      const [name, data, ...more] = event.split("\n");
      const parsed = JSON.parse(data?.replace(/^data: /, "") ?? "") as { type: string };
      expect([name, more]).toEqual([`event: ${parsed.type}`, []]);
      return parsed;
    });
}

describe("an answer as Anthropic's events", () => {
  it("begins with the message and ends with its stop reason and usage", () => {
    const encoder = messagesEncoder(head, { thinking: false });
    const text =
      encoder.start() +
      encoder.text("Hel", null) +
      encoder.text("", null) +
      encoder.reasoning("hm") +
      encoder.text("lo", null) +
      encoder.end({ finishReason: "stop", usage });
    expect(read(text)).toEqual([
      {
        type: "message_start",
        message: {
          id: "msg_0199",
          type: "message",
          role: "assistant",
          model: "flight",
          content: [],
          stop_reason: null,
          stop_sequence: null,
          usage: {
            input_tokens: 0,
            output_tokens: 0,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
          },
        },
      },
      { type: "ping" },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Hel" } },
      { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "lo" } },
      { type: "content_block_stop", index: 0 },
      {
        type: "message_delta",
        delta: { stop_reason: "end_turn", stop_sequence: null },
        usage: {
          input_tokens: 11,
          output_tokens: 7,
          cache_creation_input_tokens: 0,
          cache_read_input_tokens: 0,
        },
      },
      { type: "message_stop" },
    ]);
  });

  it("gives thoughts, text and interleaved tool calls blocks of their own, and stops tools at the end only", () => {
    const encoder = messagesEncoder(head, { thinking: true });
    const before =
      encoder.reasoning("Add ") +
      encoder.reasoning("them.") +
      encoder.text("Adding.", null) +
      encoder.toolCall({ index: 0, id: "call_a", name: "add", argumentsDelta: "" }) +
      encoder.toolCall({ index: 0, argumentsDelta: '{"a":' }) +
      encoder.toolCall({ index: 1, id: "call_b", name: "mul", argumentsDelta: "{}" }) +
      encoder.toolCall({ index: 0, argumentsDelta: "1}" });
    expect(read(before)).toEqual([
      { type: "content_block_start", index: 0, content_block: { type: "thinking", thinking: "", signature: "" } },
      { type: "content_block_delta", index: 0, delta: { type: "thinking_delta", thinking: "Add " } },
      { type: "content_block_delta", index: 0, delta: { type: "thinking_delta", thinking: "them." } },
      { type: "content_block_stop", index: 0 },
      { type: "content_block_start", index: 1, content_block: { type: "text", text: "" } },
      { type: "content_block_delta", index: 1, delta: { type: "text_delta", text: "Adding." } },
      { type: "content_block_stop", index: 1 },
      {
        type: "content_block_start",
        index: 2,
        content_block: { type: "tool_use", id: "call_a", name: "add", input: {} },
      },
      { type: "content_block_delta", index: 2, delta: { type: "input_json_delta", partial_json: '{"a":' } },
      {
        type: "content_block_start",
        index: 3,
        content_block: { type: "tool_use", id: "call_b", name: "mul", input: {} },
      },
      { type: "content_block_delta", index: 3, delta: { type: "input_json_delta", partial_json: "{}" } },
      { type: "content_block_delta", index: 2, delta: { type: "input_json_delta", partial_json: "1}" } },
    ]);
    expect(read(encoder.end({ finishReason: "tool_calls", usage })).slice(0, 3)).toMatchObject([
      { type: "content_block_stop", index: 2 },
      { type: "content_block_stop", index: 3 },
      { type: "message_delta", delta: { stop_reason: "tool_use" } },
    ]);
  });

  it("tells of a failure as an error event", () => {
    const encoder = messagesEncoder(head, { thinking: false });
    expect(read(encoder.fail(new FulgurError("ERR_UPSTREAM", "inference broke")))).toEqual([
      {
        type: "error",
        error: { type: "api_error", message: "inference broke" },
        request_id: expect.stringMatching(/^req_[0-9a-f]{32}$/) as string,
      },
    ]);
  });
});
