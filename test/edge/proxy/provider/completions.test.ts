import { describe, expect, it } from "vitest";
import { completionsReader } from "../../../../edge/proxy/provider/completions.ts";
import type { ProviderReader } from "../../../../edge/proxy/provider/answer.ts";

const head = { id: "ca_0199", startedAt: 12_345, model: "gpt" };

function reader(includeUsage = false): ProviderReader {
  return completionsReader(head, { promptCharacters: 4, includeUsage });
}

function read(events: string): unknown[] {
  return events
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => event.replace(/^data: /, ""))
    .map((data) => (data === "[DONE]" ? data : (JSON.parse(data) as unknown)));
}

describe("a provider's completion", () => {
  it("that is whole is passed on unchanged and read for the record", () => {
    const answer = {
      id: "cmpl-1",
      object: "text_completion",
      created: 1,
      model: "gpt-9",
      choices: [{ index: 0, text: "Hi", logprobs: null, finish_reason: "length" }],
      usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 },
    };
    const reads = reader();
    expect(reads.whole(answer)).toEqual(answer);
    expect(reads.gathered).toEqual({
      message: { content: "Hi", reasoning: null, toolCalls: [] },
      finishReason: "length",
      usage: answer.usage,
      model: "gpt-9",
    });
  });

  it("that says hardly anything is made whole, as an answer and as a stream", () => {
    const common = { id: "cmpl-0199", object: "text_completion", created: 12, model: "gpt" };
    const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
    expect(reader().whole({ choices: [{ text: "Hi" }] })).toEqual({
      ...common,
      choices: [{ index: 0, text: "Hi", logprobs: null, finish_reason: "stop" }],
      usage,
    });
    const reads = reader(true);
    const sent = reads.take('{"choices":[{"text":"H"}]}') + reads.take('{"choices":[{"text":"i"}]}');
    const chunk = (text: string, finish: string | null): object => ({
      ...common,
      choices: [{ index: 0, text, logprobs: null, finish_reason: finish }],
    });
    expect(read(sent + reads.ending())).toEqual([
      chunk("H", null),
      chunk("i", null),
      chunk("", "stop"),
      { ...common, choices: [], usage },
      "[DONE]",
    ]);
    expect(reads.gathered.message.content).toBe("Hi");
  });

  it("that fails is a failure", () => {
    expect(() => reader().whole({})).toThrow("no choice");
    expect(() => reader().take('{"error":{"message":"too many"}}')).toThrow("too many");
  });
});
