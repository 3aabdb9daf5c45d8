import { describe, expect, it } from "vitest";
import { chatReader } from "../../../../edge/proxy/provider/chat.ts";
import type { ProviderReader } from "../../../../edge/proxy/provider/answer.ts";

const head = { id: "ca_0199", startedAt: 12_345, model: "gpt" };

function reader(includeUsage = false): ProviderReader {
  return chatReader(head, { promptCharacters: 40, includeUsage });
}

function read(events: string): unknown[] {
  return events
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => event.replace(/^data: /, ""))
    .map((data) => (data === "[DONE]" ? data : (JSON.parse(data) as unknown)));
}

describe("a provider's chat answer", () => {
  it("that is whole is passed on unchanged and read for the record", () => {
    const answer = {
      id: "chatcmpl-1",
      object: "chat.completion",
      created: 1,
      model: "gpt-9",
      choices: [
        {
          index: 0,
          message: {
            role: "assistant",
            content: "Hi",
            refusal: null,
            annotations: [],
            tool_calls: [{ id: "call_1", type: "function", function: { name: "add", arguments: "{}" } }],
          },
          finish_reason: "tool_calls",
          logprobs: null,
        },
      ],
      usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7, prompt_tokens_details: { cached_tokens: 4 } },
      service_tier: "default",
    };
    const read = reader();
    expect(read.whole(answer)).toEqual(answer);
    expect(read.gathered).toEqual({
      message: {
        content: "Hi",
        reasoning: null,
        toolCalls: [{ id: "call_1", type: "function", function: { name: "add", arguments: "{}" } }],
      },
      finishReason: "tool_calls",
      usage: {
        prompt_tokens: 5,
        completion_tokens: 2,
        total_tokens: 7,
        prompt_tokens_details: { cached_tokens: 4 },
      },
      model: "gpt-9",
    });
  });

  it("that says hardly anything is made whole; tokens are guessed from the texts", () => {
    expect(reader().whole({ choices: [{ message: { content: "Hi there" } }] })).toEqual({
      id: "ca_0199",
      object: "chat.completion",
      created: 12,
      model: "gpt",
      choices: [{ index: 0, message: { role: "assistant", content: "Hi there" }, finish_reason: "stop" }],
      usage: { prompt_tokens: 10, completion_tokens: 2, total_tokens: 12 },
    });
    const called = { choices: [{ message: { tool_calls: [{ function: { name: "add", arguments: { a: 1 } } }] } }] };
    expect(reader().whole(called)).toMatchObject({
      choices: [
        {
          finish_reason: "tool_calls",
          message: {
            content: null,
            tool_calls: [
              {
                id: expect.stringMatching(/^call_./) as string,
                type: "function",
                function: { name: "add", arguments: '{"a":1}' },
              },
            ],
          },
        },
      ],
    });
  });

  it("without a choice is a failure", () => {
    expect(() => reader().whole({})).toThrow("no choice");
  });
});

describe("a provider's chat stream", () => {
  const base = { id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: "gpt-9" };
  const chunk = (delta: object, finish: string | null = null): object => ({
    ...base,
    choices: [{ index: 0, delta, finish_reason: finish }],
  });

  it("that is whole is passed on unchanged, its end after the record", () => {
    const chunks = [
      chunk({ role: "assistant", content: "" }),
      chunk({ content: "Hi" }),
      chunk({
        tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "add", arguments: "" } }],
      }),
      chunk({ tool_calls: [{ index: 0, function: { arguments: "{}" } }] }),
      chunk({}, "tool_calls"),
      { ...base, choices: [], usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 } },
    ];
    const reads = reader(true);
    const sent = chunks.map((each) => reads.take(JSON.stringify(each))).join("");
    expect(read(sent)).toEqual(chunks.slice(0, 4));
    expect(reads.ended).toBe(false);
    expect(reads.take("[DONE]")).toBe("");
    expect(reads.ended).toBe(true);
    expect(read(reads.ending())).toEqual([...chunks.slice(4), "[DONE]"]);
    expect(reads.gathered).toEqual({
      message: {
        content: "Hi",
        reasoning: null,
        toolCalls: [{ id: "call_1", type: "function", function: { name: "add", arguments: "{}" } }],
      },
      finishReason: "tool_calls",
      usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 },
      model: "gpt-9",
    });
  });

  it("that says hardly anything is made whole", () => {
    const reads = reader(true);
    const sent = [
      { choices: [{ delta: { content: "Hel" } }] },
      { choices: [{ delta: { tool_calls: [{ function: { name: "add", arguments: "{}" } }] } }] },
    ].map((each) => reads.take(JSON.stringify(each)));
    const head = { id: "ca_0199", object: "chat.completion.chunk", created: 12, model: "gpt" };
    expect(read(sent.join("") + reads.ending())).toEqual([
      { ...head, choices: [{ index: 0, delta: { role: "assistant", content: "Hel" }, finish_reason: null }] },
      {
        ...head,
        choices: [
          {
            index: 0,
            delta: {
              tool_calls: [
                {
                  index: 0,
                  id: expect.stringMatching(/^call_./) as string,
                  type: "function",
                  function: { name: "add", arguments: "{}" },
                },
              ],
            },
            finish_reason: null,
          },
        ],
      },
      { ...head, choices: [{ index: 0, delta: {}, finish_reason: "tool_calls" }] },
      { ...head, choices: [], usage: { prompt_tokens: 10, completion_tokens: 2, total_tokens: 12 } },
      "[DONE]",
    ]);
    expect(reads.gathered.finishReason).toBe("tool_calls");
  });

  it("that counts in every chunk is not held back", () => {
    const usage = { prompt_tokens: 5, completion_tokens: 1, total_tokens: 6 };
    expect(read(reader().take(JSON.stringify({ ...chunk({ content: "a" }), usage })))).toHaveLength(1);
  });

  it("that tells of a failure, or makes no sense, is one", () => {
    expect(() => reader().take('{"error":{"message":"too many"}}')).toThrow("too many");
    expect(() => reader().take("nonsense")).toThrow("not a JSON object");
  });
});
