import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import type { Json } from "../../../../edge/proxy/answer.ts";
import type { Answer, AnswerEncoder } from "../../../../edge/proxy/dialect.ts";
import { wholeResponse } from "../../../../edge/proxy/responses/answer.ts";
import { readResponsesRequest, type ResponsesBody } from "../../../../edge/proxy/responses/request.ts";
import { responseStream } from "../../../../edge/proxy/responses/stream.ts";

const KEY = "0199aaaabbbbccccddddeeeeffff0001";
const head = { id: `ca_${KEY}`, startedAt: 1_800_000_000_000, model: "m" };
const usage = { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 };
const none = { history: (): Promise<never> => Promise.reject(new Error("no history was to be asked for")) };

async function bodyOf(asked: object = {}): Promise<ResponsesBody> {
  return (await readResponsesRequest(JSON.stringify({ model: "m", input: "hi", ...asked }), none)).body;
}

type SentEvent = Json & { readonly type: string; readonly sequence_number: number };

/** The events of a text, each checked to be named as its data says and numbered in order. */
function eventsOf(text: string): SentEvent[] {
  expect(text.endsWith("\n\n")).toBe(true);
  return text
    .slice(0, -2)
    .split("\n\n")
    .map((block, i) => {
      const [name, data, ...more] = block.split("\n");
      expect(more).toEqual([]);
      const event: SentEvent = JSON.parse(data?.replace(/^data: /, "") ?? "");
      expect(name).toBe(`event: ${event.type}`);
      expect(event.sequence_number).toBe(i);
      return event;
    });
}

async function stream(pieces: (encoder: AnswerEncoder) => string, asked: object = {}): Promise<SentEvent[]> {
  const encoder = responseStream(await bodyOf(asked), head);
  return eventsOf(encoder.start() + pieces(encoder));
}

const types = (events: readonly SentEvent[]): string[] => events.map(({ type }) => type.replace(/^response\./, ""));

describe("responseStream", () => {
  it("tells of a text from its first word to its usage", async () => {
    const events = await stream(
      (to) => to.text("", null) + to.text("4", null) + to.text("2", null) + to.end({ finishReason: "stop", usage }),
    );
    const at = { item_id: `msg_${KEY}`, output_index: 0, content_index: 0 };
    const part = { type: "output_text", text: "42", annotations: [] };
    const item = { id: `msg_${KEY}`, type: "message", status: "completed", role: "assistant", content: [part] };
    expect(events).toMatchObject([
      { type: "response.created", response: { id: `resp_${KEY}`, status: "in_progress", output: [], usage: null } },
      { type: "response.in_progress", response: { status: "in_progress" } },
      { type: "response.output_item.added", output_index: 0, item: { ...item, status: "in_progress", content: [] } },
      { type: "response.content_part.added", ...at, part: { ...part, text: "" } },
      { type: "response.output_text.delta", ...at, delta: "4", logprobs: [] },
      { type: "response.output_text.delta", ...at, delta: "2", logprobs: [] },
      { type: "response.output_text.done", ...at, text: "42", logprobs: [] },
      { type: "response.content_part.done", ...at, part },
      { type: "response.output_item.done", output_index: 0, item },
      { type: "response.completed", response: { status: "completed", output: [item], usage: { total_tokens: 7 } } },
    ]);
  });

  it("tells of reasoning and of parallel calls, even where their pieces come in turns", async () => {
    const events = await stream(
      (to) =>
        to.reasoning("h") +
        to.reasoning("m") +
        to.toolCall({ index: 0, id: "c0", name: "f", argumentsDelta: "" }) +
        to.toolCall({ index: 1, id: "c1", name: "g", argumentsDelta: '{"b"' }) +
        to.toolCall({ index: 0, argumentsDelta: "{}" }) +
        to.toolCall({ index: 1, argumentsDelta: ":2}" }) +
        to.end({ finishReason: "tool_calls", usage }),
    );
    expect(types(events).slice(2)).toEqual([
      "output_item.added",
      "content_part.added",
      "reasoning_text.delta",
      "reasoning_text.delta",
      "reasoning_text.done",
      "content_part.done",
      "output_item.done",
      "output_item.added",
      "output_item.added",
      "function_call_arguments.delta",
      "function_call_arguments.delta",
      "function_call_arguments.delta",
      "function_call_arguments.done",
      "output_item.done",
      "function_call_arguments.done",
      "output_item.done",
      "completed",
    ]);
    expect(events[9]).toMatchObject({
      output_index: 1,
      item: { call_id: "c0", name: "f", arguments: "", status: "in_progress" },
    });
    expect(events[13]).toMatchObject({ item_id: `fc_${KEY}_1`, output_index: 2, delta: ":2}" });
    expect(events.at(-1)).toMatchObject({
      response: {
        output: [
          { id: `rs_${KEY}`, content: [{ type: "reasoning_text", text: "hm" }] },
          { id: `fc_${KEY}`, call_id: "c0", name: "f", arguments: "{}" },
          { id: `fc_${KEY}_1`, call_id: "c1", name: "g", arguments: '{"b":2}' },
        ],
      },
    });
  });

  it("gives a text that goes on after a call an item of its own", async () => {
    const events = await stream(
      (to) =>
        to.text("a", null) +
        to.toolCall({ index: 0, id: "c0", name: "f", argumentsDelta: "{}" }) +
        to.text("b", null) +
        to.end({ finishReason: "tool_calls", usage }),
    );
    expect(events.at(-1)).toMatchObject({
      response: {
        output: [
          { id: `msg_${KEY}`, content: [{ text: "a" }] },
          { id: `fc_${KEY}` },
          { id: `msg_${KEY}_1`, content: [{ text: "b" }] },
        ],
      },
    });
  });

  it("ends as incomplete where the answer was cut, the last item too", async () => {
    const events = await stream(
      (to) =>
        to.text("a", null) +
        to.toolCall({ index: 0, id: "c0", name: "f", argumentsDelta: '{"a' }) +
        to.end({ finishReason: "length", usage }),
    );
    expect(events.at(-1)).toMatchObject({
      type: "response.incomplete",
      response: {
        status: "incomplete",
        incomplete_details: { reason: "max_output_tokens" },
        output: [{ status: "completed" }, { status: "incomplete" }],
      },
    });
    expect(events.at(-2)).toMatchObject({ type: "response.output_item.done", item: { status: "incomplete" } });
  });

  it("tells of a failure as a failed response and as an error", async () => {
    const failure = new FulgurError("ERR_UPSTREAM", "inference failed: it broke");
    const events = await stream((to) => to.text("a", null) + to.fail(failure));
    expect(events.slice(-2)).toMatchObject([
      {
        type: "response.failed",
        response: {
          status: "failed",
          error: { code: "server_error", message: "inference failed: it broke" },
          usage: null,
        },
      },
      {
        type: "error",
        code: "ERR_UPSTREAM",
        message: "inference failed: it broke",
        param: null,
        error: { type: "server_error", code: "ERR_UPSTREAM", message: "inference failed: it broke" },
      },
    ]);
  });

  it("gives logprobs with their text, those that came before it too", async () => {
    const of = (...tokens: string[]): Json => ({ content: tokens.map((token) => ({ token, logprob: -1 })) });
    const pieces = (to: AnswerEncoder): string =>
      to.text("", of("a")) +
      to.text("ab", of("b")) +
      to.text("", of("<|end|>")) +
      to.end({ finishReason: "stop", usage });
    const entry = (token: string): Json => ({ token, logprob: -1, bytes: [token.charCodeAt(0)], top_logprobs: [] });
    const events = await stream(pieces, { include: ["message.output_text.logprobs"] });
    expect(events.find(({ type }) => type.endsWith("text.delta"))).toMatchObject({
      logprobs: [entry("a"), entry("b")],
    });
    expect(events.find(({ type }) => type.endsWith("text.done"))).toMatchObject({ logprobs: [entry("a"), entry("b")] });
    expect(events.at(-1)).toMatchObject({
      response: { output: [{ content: [{ logprobs: [entry("a"), entry("b")] }] }] },
    });
    expect((await stream(pieces)).at(-1)).toMatchObject({
      response: { output: [{ content: [{ type: "output_text", text: "ab", annotations: [] }] }] },
    });
  });

  it("keeps a prompt's line breaks and event names inside their event", async () => {
    const evil = "\n\nevent: response.completed\ndata: {}\r\n\u2028";
    const events = await stream((to) => to.text(evil, null) + to.end({ finishReason: "stop", usage }));
    expect(types(events).filter((type) => type === "completed")).toHaveLength(1);
    expect(events.find(({ type }) => type.endsWith("text.delta"))).toMatchObject({ delta: evil });
  });

  it("ends, however an answer is cut into pieces, with the response that is given whole", async () => {
    const bodies = [await bodyOf(), await bodyOf({ include: ["message.output_text.logprobs"] })];
    fc.assert(
      fc.property(
        answers,
        fc.constantFrom(...bodies),
        fc.infiniteStream(fc.integer({ min: 1, max: 4 })),
        (given, body, sizes) => {
          const { texts, reasoning, toolCalls, finishReason } = given;
          const cut = (text: string): string[] => pieces(text, sizes);
          const encoder = responseStream(body, head);
          let sent = encoder.start();
          for (const piece of cut(reasoning)) sent += encoder.reasoning(piece);
          for (const token of texts) sent += encoder.text(token, { content: [{ token, logprob: -1 }] });
          for (const [index, call] of toolCalls.entries()) {
            const { id, function: called } = call;
            sent += encoder.toolCall({ index, id, name: called.name, argumentsDelta: "" });
            for (const argumentsDelta of cut(called.arguments)) sent += encoder.toolCall({ index, argumentsDelta });
          }
          sent += encoder.end({ finishReason, usage });
          const content = texts.length === 0 ? null : texts.join("");
          const answer: Answer = {
            ...head,
            message: { content, reasoning: reasoning === "" ? null : reasoning, toolCalls },
            finishReason,
            usage,
            // Chat gives those of all that was sampled.
            logprobs: {
              content: [reasoning, ...texts, ...toolCalls.map((call) => call.function.arguments)].map((token) => ({
                token,
                logprob: -1,
              })),
            },
          };
          const events = eventsOf(sent);
          expect(events.at(-1)?.["response"]).toEqual(JSON.parse(JSON.stringify(wholeResponse(body, answer))));
          // What was told item by item is what the last event holds.
          const done = events.filter(({ type }) => type === "response.output_item.done");
          const output = done
            .toSorted((a, b) => Number(a["output_index"]) - Number(b["output_index"]))
            .map(({ item }) => item);
          expect(events.at(-1)).toMatchObject({ response: { output } });
        },
      ),
      { numRuns: 300 },
    );
  });
});

const answers = fc.record({
  texts: fc.array(fc.string({ unit: "grapheme", minLength: 1, maxLength: 5 }), { maxLength: 8 }),
  reasoning: fc.string({ unit: "grapheme", maxLength: 20 }),
  toolCalls: fc.array(
    fc.record({
      id: fc.string({ minLength: 1 }),
      type: fc.constant("function" as const),
      function: fc.record({ name: fc.string({ minLength: 1 }), arguments: fc.json() }),
    }),
    { maxLength: 3 },
  ),
  finishReason: fc.constantFrom("stop", "tool_calls", "length", "content_filter"),
});

function pieces(text: string, sizes: Iterator<number>): string[] {
  const found: string[] = [];
  for (let at = 0; at < text.length;) {
    const { value } = sizes.next();
    const size = typeof value === "number" ? value : text.length;
    found.push(text.slice(at, at + size));
    at += size;
  }
  return found;
}
