import { describe, expect, it } from "vitest";
import type { Json } from "../../../../edge/proxy/answer.ts";
import type { AnswerHead, DialectName } from "../../../../edge/proxy/dialect.ts";
import { messagesReader } from "../../../../edge/proxy/messages/reader.ts";
import type { ProviderReader } from "../../../../edge/proxy/provider/answer.ts";
import { asEvents } from "../../../../edge/proxy/provider/as-events.ts";
import { chatReader } from "../../../../edge/proxy/provider/chat.ts";
import { completionsReader } from "../../../../edge/proxy/provider/completions.ts";
import { responsesReader } from "../../../../edge/proxy/provider/responses.ts";

const head: AnswerHead = { id: "ca_0199", startedAt: 12_345, model: "gpt" };
const options = { promptCharacters: 40, includeUsage: true };

const answers: readonly [DialectName, (head: AnswerHead) => ProviderReader, Json][] = [
  [
    "chat",
    (given) => chatReader(given, options),
    {
      object: "chat.completion",
      choices: [
        {
          index: 0,
          message: {
            role: "assistant",
            content: "Hello",
            tool_calls: [
              { id: "c1", type: "function", function: { name: "f", arguments: '{"a":1}' } },
              { id: "c2", type: "function", function: { name: "g", arguments: "{}" } },
            ],
          },
          finish_reason: "tool_calls",
        },
      ],
      usage: { prompt_tokens: 5, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } },
    },
  ],
  [
    "completions",
    (given) => completionsReader(given, options),
    { choices: [{ text: "Hello", finish_reason: "length" }], usage: { prompt_tokens: 5, completion_tokens: 2 } },
  ],
  [
    "responses",
    (given) => responsesReader(given, options),
    {
      status: "completed",
      output: [
        { type: "reasoning", id: "rs_1", summary: [{ type: "summary_text", text: "hm" }] },
        { type: "message", id: "msg_1", content: [{ type: "output_text", text: "Hello", annotations: [] }] },
        { type: "function_call", id: "fc_1", call_id: "c1", name: "f", arguments: '{"a":1}' },
      ],
      usage: {
        input_tokens: 5,
        output_tokens: 2,
        input_tokens_details: { cached_tokens: 4 },
        output_tokens_details: { reasoning_tokens: 1 },
      },
    },
  ],
  [
    "messages",
    (given) => messagesReader(given, options),
    {
      type: "message",
      content: [
        { type: "thinking", thinking: "hm", signature: "s" },
        { type: "text", text: "Hello" },
        { type: "tool_use", id: "c1", name: "f", input: { a: 1 } },
      ],
      stop_reason: "tool_use",
      usage: { input_tokens: 1, cache_read_input_tokens: 4, output_tokens: 2 },
    },
  ],
];

describe("a whole answer in place of events", () => {
  it.each(answers)("of %s is read as it would be whole", (dialect, readerOf, answer) => {
    const whole = readerOf(head);
    whole.whole(answer);
    const streamed = readerOf(head);
    for (const event of asEvents(dialect, answer)) streamed.take(JSON.stringify(event));
    streamed.ending();
    expect(whole.gathered.message.content).toBe("Hello");
    expect(streamed.gathered).toEqual(whole.gathered);
  });

  it("of responses says its text in deltas, which clients wait for", () => {
    const reader = responsesReader(head, options);
    const events = asEvents("responses", { output_text: "Hello" });
    const sent = events.map((event) => reader.take(JSON.stringify(event))).join("") + reader.ending();
    expect([...sent.matchAll(/^event: (.*)$/gm)].map(([, type]) => type)).toEqual([
      "response.created",
      "response.output_item.added",
      "response.content_part.added",
      "response.output_text.delta",
      "response.output_text.done",
      "response.content_part.done",
      "response.output_item.done",
      "response.completed",
    ]);
  });

  it.each(["chat", "completions", "responses", "messages"] as const)("that is a failure is one in %s", (dialect) => {
    const readerOf = answers.find(([name]) => name === dialect)?.[1];
    for (const error of ["out of order", { message: "out of order" }]) {
      const take = (): unknown =>
        asEvents(dialect, { error }).map((event) => readerOf?.(head).take(JSON.stringify(event)));
      expect(take).toThrow("out of order");
    }
  });
});
