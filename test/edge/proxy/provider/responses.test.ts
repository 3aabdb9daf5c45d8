import { describe, expect, it } from "vitest";
import type { ProviderReader } from "../../../../edge/proxy/provider/answer.ts";
import { responsesReader } from "../../../../edge/proxy/provider/responses.ts";
import { responses } from "../../../../edge/proxy/responses/responses.ts";

const key = "0".repeat(32);
const head = { id: `ca_${key}`, startedAt: 12_345, model: "gpt" };
const usage = {
  prompt_tokens: 5,
  completion_tokens: 2,
  total_tokens: 7,
  prompt_tokens_details: { cached_tokens: 4 },
  completion_tokens_details: { reasoning_tokens: 1 },
};
const history = (): never => {
  throw new Error("no history was expected");
};

function reader(): ProviderReader {
  return responsesReader(head, { promptCharacters: 40 });
}

function read(events: string): Record<string, unknown>[] {
  return events
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => {
      const [name, data] = event.split("\n");
      const parsed = JSON.parse(data?.replace(/^data: /, "") ?? "") as Record<string, unknown>;
      expect(name).toBe(`event: ${String(parsed["type"])}`);
      return parsed;
    });
}

/** A whole provider is played by our own answers of another call. */
async function provider(): Promise<Awaited<ReturnType<typeof responses.parse>>> {
  return responses.parse(JSON.stringify({ model: "gpt-9", input: "hi", stream: true }), { history });
}
const theirs = { id: `ca_${"1".repeat(32)}`, startedAt: 1000, model: "gpt-9" };
const call = { id: "call_1", type: "function" as const, function: { name: "add", arguments: '{"a":1}' } };
const gathered = {
  message: { content: "Hi", reasoning: null, toolCalls: [call] },
  finishReason: "tool_calls",
  usage,
  model: "gpt-9",
};

describe("a provider's response", () => {
  it("that is whole is passed on unchanged and read for the record", async () => {
    const answer = (await provider()).whole({ ...theirs, ...gathered, model: "gpt-9", logprobs: null });
    const reads = reader();
    expect(reads.whole(answer)).toEqual(answer);
    expect(reads.gathered).toEqual(gathered);
  });

  it("that says hardly anything is made whole", () => {
    const output = [{ content: [{ text: "Hi" }] }, { type: "function_call", name: "add", arguments: { a: 1 } }];
    expect(reader().whole({ output })).toMatchObject({
      id: `resp_${key}`,
      object: "response",
      created_at: 12,
      model: "gpt",
      status: "completed",
      output: [
        {
          id: `msg_${key}`,
          type: "message",
          role: "assistant",
          status: "completed",
          content: [{ type: "output_text", text: "Hi", annotations: [] }],
        },
        {
          id: `fc_${key}_1`,
          type: "function_call",
          status: "completed",
          call_id: expect.stringMatching(/^call_./) as string,
          name: "add",
          arguments: '{"a":1}',
        },
      ],
      usage: {
        input_tokens: 10,
        output_tokens: 3,
        total_tokens: 13,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens_details: { reasoning_tokens: 0 },
      },
    });
  });

  it("that is a failure is one", () => {
    expect(() => reader().whole({ error: { message: "too many" } })).toThrow("too many");
    expect(() => reader().take('{"type":"error","message":"too many"}')).toThrow("too many");
  });
});

describe("a provider's stream of a response", () => {
  it("that is whole is passed on unchanged, its end after the record", async () => {
    const encoder = (await provider()).stream(theirs);
    const said =
      encoder.start() +
      encoder.text("H", null) +
      encoder.text("i", null) +
      encoder.toolCall({ index: 0, id: "call_1", name: "add", argumentsDelta: '{"a":' }) +
      encoder.toolCall({ index: 0, argumentsDelta: "1}" });
    const all = read(said + encoder.end({ finishReason: "tool_calls", usage }));
    const reads = reader();
    let sent = "";
    for (const event of all) {
      expect(reads.ended).toBe(false);
      sent += reads.take(JSON.stringify(event));
    }
    expect(reads.ended).toBe(true);
    expect(read(sent)).toEqual(all.slice(0, -1));
    expect(read(sent + reads.ending())).toEqual(all);
    expect(reads.gathered).toEqual(gathered);
  });

  it("that is deltas alone gets the events that clients put an answer together from", () => {
    const reads = reader();
    const deltas = [
      { type: "response.output_text.delta", delta: "H" },
      { type: "response.output_text.delta", delta: "i" },
      { type: "response.output_item.added", item: { type: "function_call", name: "add" } },
      { type: "response.function_call_arguments.delta", delta: "{}" },
    ];
    const sent = deltas.map((event) => reads.take(JSON.stringify(event))).join("");
    const events = read(sent + reads.ending());
    expect(events.map(({ type }) => type)).toEqual([
      "response.created",
      "response.output_item.added",
      "response.content_part.added",
      "response.output_text.delta",
      "response.output_text.delta",
      "response.output_item.added",
      "response.function_call_arguments.delta",
      "response.output_text.done",
      "response.content_part.done",
      "response.output_item.done",
      "response.function_call_arguments.done",
      "response.output_item.done",
      "response.completed",
    ]);
    expect(events.map(({ sequence_number: n }) => n)).toEqual(events.map((_, at) => at));
    const done = events.at(-1)?.["response"] as { output: { id: string; call_id?: string }[] };
    expect(done).toMatchObject({
      status: "completed",
      usage: { input_tokens: 10, output_tokens: 2 },
      output: [
        { type: "message", content: [{ type: "output_text", text: "Hi", annotations: [] }] },
        { type: "function_call", name: "add", arguments: "{}" },
      ],
    });
    const begun = events.filter(({ type }) => type === "response.output_item.added").map(({ item }) => item);
    expect(begun).toMatchObject(
      done.output.map(({ id, call_id: callId }) => (callId === undefined ? { id } : { id, call_id: callId })),
    );
    expect(reads.gathered).toMatchObject({ finishReason: "tool_calls", message: { content: "Hi" } });
  });

  it("keeps the id of a call that its end does not repeat", () => {
    const reads = reader();
    const item = { type: "function_call", name: "add" };
    const events = read(
      reads.take(JSON.stringify({ type: "response.output_item.added", output_index: 0, item })) +
        reads.take(
          JSON.stringify({ type: "response.output_item.done", output_index: 0, item: { ...item, arguments: "{}" } }),
        ) +
        reads.take(
          JSON.stringify({ type: "response.completed", response: { output: [{ ...item, arguments: "{}" }] } }),
        ) +
        reads.ending(),
    );
    const callIds = JSON.stringify(events).match(/call_[0-9a-f]{32}/g);
    expect(callIds).toHaveLength(3);
    expect(new Set(callIds).size).toBe(1);
  });
});
