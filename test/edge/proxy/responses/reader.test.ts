import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Json } from "../../../../edge/proxy/answer.ts";
import { readResponse, responseStreamReader, type ReadAnswer } from "../../../../edge/proxy/responses/reader.ts";
import { responses } from "../../../../edge/proxy/responses/responses.ts";

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

function readStream(...events: readonly Json[]): ReadAnswer {
  const reader = responseStreamReader();
  for (const event of events) reader.take(bytes(`data: ${JSON.stringify(event)}\n\n`));
  return reader.answer();
}

const call = { type: "function_call", id: "fc_1", call_id: "c1", name: "f", arguments: "{}" };

describe("readResponse", () => {
  it("reads text, reasoning, calls, usage and model of a whole answer", () => {
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
        usage: { input_tokens: 5, output_tokens: 2, total_tokens: 9 },
      }),
    ).toEqual({
      message: {
        content: "ab",
        reasoning: "in short",
        toolCalls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
      },
      finishReason: "tool_calls",
      usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 },
      model: "gpt",
      error: null,
    });
  });

  it("makes do with the least that a provider may answer", () => {
    const least = { finishReason: "stop", usage: undefined, model: null, error: null };
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

  it("tells why a response failed", () => {
    expect(readResponse({ status: "failed", error: { code: "server_error", message: "broke" } }).error).toBe("broke");
    expect(readResponse({ error: "broke" }).error).toBe("broke");
    expect(readResponse({ error: {} }).error).toBe("the provider gave no reason");
  });
});

describe("responseStreamReader", () => {
  const said = { type: "message", id: "msg_1", content: [{ type: "output_text", text: "hello" }] };

  it("believes the response of the last event", () => {
    expect(
      readStream(
        { type: "response.created", response: { status: "in_progress", model: "gpt", output: [] } },
        { type: "response.output_text.delta", output_index: 0, delta: "hel" },
        {
          type: "response.completed",
          response: { status: "completed", output: [said], usage: { input_tokens: 1, output_tokens: 2 } },
        },
      ),
    ).toEqual({
      message: { content: "hello", reasoning: null, toolCalls: [] },
      finishReason: "stop",
      usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 },
      model: "gpt",
      error: null,
    });
  });

  it.each([
    ["with output indexes", true],
    ["without", false],
  ])("gathers the pieces where the last event brings none, %s", (_how, isIndexed) => {
    const at = (index: number): object => (isIndexed ? { output_index: index } : {});
    const { message, finishReason } = readStream(
      { type: "response.output_item.added", ...at(0), item: { type: "reasoning", summary: [] } },
      { type: "response.reasoning_text.delta", ...at(0), delta: "h" },
      { type: "response.reasoning_text.delta", ...at(0), delta: "m" },
      { type: "response.output_item.done", ...at(0), item: { type: "reasoning" } },
      { type: "response.output_text.delta", ...at(1), delta: "hel" },
      { type: "response.output_text.delta", ...at(1), delta: "lo" },
      { type: "response.output_item.done", ...at(1), item: said },
      { type: "response.output_item.added", ...at(2), item: { ...call, arguments: "" } },
      { type: "response.function_call_arguments.delta", ...at(2), delta: "{" },
      { type: "response.function_call_arguments.delta", ...at(2), delta: "}" },
      { type: "response.completed" },
    );
    expect(message).toEqual({
      content: "hello",
      reasoning: "hm",
      toolCalls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
    });
    expect(finishReason).toBe("tool_calls");
  });

  it("has no finish reason where the stream broke off", () => {
    const { message, finishReason } = readStream(
      { type: "response.created", response: { status: "in_progress" } },
      { type: "response.output_text.delta", output_index: 0, delta: "hel" },
    );
    expect(message.content).toBe("hel");
    expect(finishReason).toBeNull();
    expect(readStream().finishReason).toBeNull();
  });

  it("tells of a failure, flat, nested or as a failed response", () => {
    expect(readStream({ type: "error", message: "broke" })).toMatchObject({ error: "broke", finishReason: null });
    expect(readStream({ type: "error", error: { message: "broke" } }).error).toBe("broke");
    expect(readStream({ error: { message: "broke" } }).error).toBe("broke");
    expect(readStream({ type: "response.failed", response: { error: { message: "broke" } } })).toMatchObject({
      error: "broke",
      finishReason: null,
    });
  });

  it("reads what our own encoder writes, cut anywhere", async () => {
    const asked = await responses.parse('{"model":"m","input":"hi"}', {
      history: () => Promise.reject(new Error("no history was to be asked for")),
    });
    const encoder = asked.stream({ id: "ca_1", startedAt: 0, model: "m" });
    const sent = bytes(
      encoder.start() +
        encoder.reasoning("hm") +
        encoder.text("naïve 🦊\n", null) +
        encoder.toolCall({ index: 0, id: "c1", name: "f", argumentsDelta: "{}" }) +
        encoder.end({ finishReason: "length", usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 } }),
    );
    fc.assert(
      fc.property(fc.array(fc.nat(sent.length), { maxLength: 30 }), (cuts) => {
        const reader = responseStreamReader();
        const edges = [0, ...cuts.toSorted((a, b) => a - b), sent.length];
        for (const [i, from] of edges.entries()) reader.take(sent.subarray(from, edges[i + 1] ?? from));
        expect(reader.answer()).toEqual({
          message: {
            content: "naïve 🦊\n",
            reasoning: "hm",
            toolCalls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
          },
          finishReason: "length",
          usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 },
          model: "m",
          error: null,
        });
      }),
    );
  });

  it("throws on nothing that a provider may send", () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.oneof(
            fc.json(),
            fc.string(),
            events.map((event) => JSON.stringify(event)),
          ),
        ),
        (sent) => {
          const reader = responseStreamReader();
          for (const data of sent) reader.take(bytes(`data: ${data}\n\n`));
          const { message } = reader.answer();
          expect(Array.isArray(message.toolCalls)).toBe(true);
        },
      ),
    );
  });
});

const events = fc.record(
  {
    type: fc.constantFrom(
      "response.output_item.added",
      "response.output_item.done",
      "response.output_text.delta",
      "response.function_call_arguments.delta",
      "response.completed",
      "error",
    ),
    output_index: fc.oneof(fc.integer(), fc.string()),
    delta: fc.oneof(fc.string(), fc.nat()),
    item: fc.oneof(fc.object(), fc.constant({ type: "function_call" }), fc.constant(null)),
    response: fc.oneof(fc.object(), fc.record({ output: fc.array(fc.anything()) })),
    error: fc.oneof(fc.object(), fc.string(), fc.constant(null)),
  },
  { requiredKeys: [] },
);
