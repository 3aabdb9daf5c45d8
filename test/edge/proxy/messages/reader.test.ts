import { describe, expect, it } from "vitest";
import { messagesEncoder } from "../../../../edge/proxy/messages/stream.ts";
import { messagesReader } from "../../../../edge/proxy/messages/reader.ts";
import type { ProviderReader } from "../../../../edge/proxy/provider/answer.ts";

const head = { id: "ca_0199", startedAt: 1000, model: "claude" };

function reader(): ProviderReader {
  return messagesReader(head, { promptCharacters: 40 });
}

function dataOf(events: string): Record<string, unknown>[] {
  return events
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => JSON.parse(event.split("\n")[1]?.replace(/^data: /, "") ?? "") as Record<string, unknown>);
}

describe("a provider's messages answer", () => {
  const whole = {
    id: "msg_theirs",
    type: "message",
    role: "assistant",
    model: "claude-9",
    content: [
      { type: "thinking", thinking: "hm", signature: "sig" },
      { type: "text", text: "Hi", citations: [{ url: "x" }] },
      { type: "tool_use", id: "toolu_1", name: "add", input: { a: 1 } },
    ],
    stop_reason: "tool_use",
    stop_sequence: null,
    usage: { input_tokens: 5, cache_read_input_tokens: 20, output_tokens: 9, service_tier: "standard" },
    container: null,
  };

  it("that is whole is passed on unchanged and read for the record", () => {
    const read = reader();
    expect(read.whole(whole)).toEqual(whole);
    expect(read.gathered).toEqual({
      message: {
        content: "Hi",
        reasoning: "hm",
        toolCalls: [{ id: "toolu_1", type: "function", function: { name: "add", arguments: '{"a":1}' } }],
      },
      finishReason: "tool_calls",
      usage: {
        prompt_tokens: 25,
        completion_tokens: 9,
        total_tokens: 34,
        prompt_tokens_details: { cached_tokens: 20 },
      },
      model: "claude-9",
    });
  });

  it("that says hardly anything is made whole", () => {
    const read = reader();
    expect(read.whole({ content: [{ type: "text", text: "Hi there" }] })).toEqual({
      id: "msg_0199",
      type: "message",
      role: "assistant",
      model: "claude",
      content: [{ type: "text", text: "Hi there" }],
      stop_reason: "end_turn",
      stop_sequence: null,
      usage: { input_tokens: 10, output_tokens: 2 },
    });
    const called = reader().whole({ content: [{ type: "tool_use", name: "add", input: {} }] });
    expect(called).toMatchObject({
      stop_reason: "tool_use",
      content: [{ id: expect.stringMatching(/^toolu_./) as string }],
    });
  });
});

describe("a provider's messages stream", () => {
  it("that is whole is passed on unchanged, its end after the record", () => {
    const encoder = messagesEncoder({ ...head, id: "ca_theirs" }, { thinking: true });
    const said =
      encoder.start() +
      encoder.reasoning("hm") +
      encoder.text("Hi", null) +
      encoder.toolCall({ index: 0, id: "toolu_1", name: "add", argumentsDelta: '{"a":' }) +
      encoder.toolCall({ index: 0, argumentsDelta: "1}" });
    const usage = {
      prompt_tokens: 5,
      completion_tokens: 9,
      total_tokens: 14,
      prompt_tokens_details: { cached_tokens: 3 },
    };
    const end = encoder.end({ finishReason: "tool_calls", usage });
    const read = reader();
    let sent = "";
    for (const event of dataOf(said + end)) {
      expect(read.ended).toBe(false);
      sent += read.take(JSON.stringify(event));
    }
    expect(read.ended).toBe(true);
    expect(dataOf(sent).at(-1)).toEqual({ type: "content_block_stop", index: 2 });
    expect(sent + read.ending()).toBe(said + end);
    expect(read.gathered).toEqual({
      message: {
        content: "Hi",
        reasoning: "hm",
        toolCalls: [{ id: "toolu_1", type: "function", function: { name: "add", arguments: '{"a":1}' } }],
      },
      finishReason: "tool_calls",
      usage,
      model: "claude",
    });
  });

  it("without a beginning, indices, usage and an end gets them", () => {
    const read = reader();
    const events = [
      { type: "content_block_start", content_block: { type: "text", text: "" } },
      { type: "content_block_delta", delta: { type: "text_delta", text: "Hello" } },
      { type: "content_block_stop" },
    ];
    const sent = events.map((event) => read.take(JSON.stringify(event))).join("");
    expect(dataOf(sent + read.ending())).toEqual([
      {
        type: "message_start",
        message: {
          id: "msg_0199",
          type: "message",
          role: "assistant",
          model: "claude",
          content: [],
          stop_reason: null,
          stop_sequence: null,
          usage: { input_tokens: 0, output_tokens: 0 },
        },
      },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Hello" } },
      { type: "content_block_stop", index: 0 },
      {
        type: "message_delta",
        delta: { stop_reason: "end_turn", stop_sequence: null },
        usage: { input_tokens: 10, output_tokens: 2 },
      },
      { type: "message_stop" },
    ]);
    expect(read.gathered).toMatchObject({ message: { content: "Hello" }, finishReason: "stop" });
  });

  it("that tells of a failure, or makes no sense, is one", () => {
    const failure = { type: "error", error: { type: "overloaded_error", message: "too many" } };
    expect(() => reader().take(JSON.stringify(failure))).toThrow("too many");
    expect(() => reader().take("[]")).toThrow("no typed object");
  });
});
