import { describe, expect, it } from "vitest";
import type { Json } from "../../../../edge/proxy/answer.ts";
import { fillResponse, responseEventFiller } from "../../../../edge/proxy/responses/filler.ts";
import { responses } from "../../../../edge/proxy/responses/responses.ts";

const KEY = "0199aaaabbbbccccddddeeeeffff0001";
const head = { id: `ca_${KEY}`, startedAt: 1_800_000_000_999, model: "m" };
const none = { history: (): Promise<never> => Promise.reject(new Error("no history was to be asked for")) };

describe("fillResponse", () => {
  it("fills what the least of answers lacks", () => {
    expect(
      fillResponse(
        {
          output: [
            { content: [{ text: "hi" }] },
            { type: "function_call", name: "f", arguments: { a: 1 } },
            { type: "reasoning" },
          ],
          usage: { input_tokens: 2, output_tokens: 3 },
        },
        head,
      ),
    ).toEqual({
      id: `resp_${KEY}`,
      object: "response",
      created_at: 1_800_000_000,
      status: "completed",
      model: "m",
      error: null,
      incomplete_details: null,
      instructions: null,
      metadata: {},
      parallel_tool_calls: true,
      temperature: null,
      tool_choice: "auto",
      tools: [],
      top_p: null,
      output: [
        {
          type: "message",
          id: `msg_${KEY}_at_0`,
          role: "assistant",
          status: "completed",
          content: [{ type: "output_text", text: "hi", annotations: [] }],
        },
        {
          type: "function_call",
          id: `fc_${KEY}_at_1`,
          call_id: `call_fc_${KEY}_at_1`,
          status: "completed",
          name: "f",
          arguments: '{"a":1}',
        },
        { type: "reasoning", id: `rs_${KEY}_at_2`, summary: [] },
      ],
      usage: {
        input_tokens: 2,
        output_tokens: 3,
        total_tokens: 5,
        input_tokens_details: { cached_tokens: 0, cache_write_tokens: 0 },
        output_tokens_details: { reasoning_tokens: 0 },
      },
    });
  });

  it("makes a part of a text that is none", () => {
    expect(fillResponse({ output: [{ content: "hi" }] }, head)).toMatchObject({
      output: [{ content: [{ type: "output_text", text: "hi", annotations: [] }] }],
    });
  });

  it("leaves a whole answer as it is, fields that it does not know too", async () => {
    const asked = await responses.parse('{"model":"m","input":"hi"}', none);
    const whole = asked.whole({
      ...head,
      message: {
        content: "hi",
        reasoning: "hm",
        toolCalls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
      },
      finishReason: "tool_calls",
      usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 },
      logprobs: null,
    });
    const hosted = { ...whole, tool_usage: { web_search: 1 }, output: [{ type: "web_search_call", id: "ws_1" }] };
    expect(fillResponse(whole, { ...head, id: "ca_other" })).toEqual(whole);
    expect(fillResponse(hosted, { ...head, id: "ca_other" })).toEqual(hosted);
  });

  it.each([
    [{ incomplete_details: { reason: "max_output_tokens" } }, "incomplete"],
    [{ error: { message: "broke" } }, "failed"],
    [{ status: "in_progress" }, "in_progress"],
  ])("reads the status of %j", (given, status) => {
    expect(fillResponse(given, head)).toMatchObject({ status, output: [], usage: null });
  });
});

describe("responseEventFiller", () => {
  const fill = (...events: Json[]): Json[] => events.map(responseEventFiller(head));

  it("gives the events of the least of streams their numbers and ids, the same throughout", () => {
    const filled = fill(
      { type: "response.created", response: {} },
      { type: "response.output_item.added", item: { type: "message" } },
      { type: "response.output_text.delta", delta: "hi" },
      { type: "response.output_item.done", item: { content: [{ text: "hi" }] } },
      { type: "response.output_item.added", item: { type: "function_call", name: "f" } },
      { type: "response.function_call_arguments.delta", delta: "{}" },
      { type: "response.output_item.done", item: { type: "function_call", name: "f", arguments: "{}" } },
      {
        type: "response.completed",
        response: { output: [{ content: [{ text: "hi" }] }, { type: "function_call", name: "f", arguments: "{}" }] },
      },
    );
    expect(filled.map((event) => event["sequence_number"])).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    const id = `msg_${KEY}_at_0`;
    const call = {
      id: `fc_${KEY}_at_1`,
      call_id: `call_fc_${KEY}_at_1`,
      name: "f",
      arguments: "{}",
      status: "completed",
    };
    const said = {
      id,
      role: "assistant",
      status: "completed",
      content: [{ type: "output_text", text: "hi", annotations: [] }],
    };
    expect(filled).toMatchObject([
      { response: { id: `resp_${KEY}`, status: "in_progress", output: [] } },
      { output_index: 0, item: { id, status: "in_progress", content: [] } },
      { output_index: 0, item_id: id, content_index: 0, logprobs: [], delta: "hi" },
      { output_index: 0, item: said },
      { output_index: 1, item: { ...call, arguments: "", status: "in_progress" } },
      { output_index: 1, item_id: call.id, delta: "{}" },
      { output_index: 1, item: call },
      { response: { status: "completed", output: [said, call] } },
    ]);
    expect(filled[5]).not.toHaveProperty("content_index");
  });

  it("leaves the events of a whole stream, and those that it does not know, as they are", async () => {
    const asked = await responses.parse('{"model":"m","input":"hi"}', none);
    const encoder = asked.stream(head);
    const text =
      encoder.start() +
      encoder.reasoning("hm") +
      encoder.text("hi", null) +
      encoder.toolCall({ index: 0, id: "c", name: "f", argumentsDelta: "{}" }) +
      encoder.end({ finishReason: "length", usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 } });
    const events: Json[] = [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data ?? ""));
    expect(events.length).toBeGreaterThan(15);
    const fillOther = responseEventFiller({ ...head, id: "ca_other" });
    expect(events.map(fillOther)).toEqual(events);
    const unknown = { type: "response.web_search_call.searching", sequence_number: 9, item_id: "ws_1" };
    expect(fill(unknown)).toEqual([unknown]);
  });
});
