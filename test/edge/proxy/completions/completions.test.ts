import { describe, expect, it } from "vitest";
import { completionsDialect } from "../../../../edge/proxy/completions/completions.ts";
import { readSampled } from "../../../../edge/proxy/answer.ts";

const head = { id: "ca_0199", startedAt: 12_345, model: "flight" };
const usage = { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 };

/** What vLLM answers to `logprobs: 1, return_token_ids: true`. */
const upstream = {
  id: "cmpl-theirs",
  model: "flight@13",
  choices: [
    {
      index: 0,
      text: "ab",
      token_ids: [7, 8],
      logprobs: {
        tokens: ["a", "b"],
        token_logprobs: [-0.5, -1],
        top_logprobs: [{ a: -0.5 }, { b: -1 }],
        text_offset: [0, 1],
      },
      finish_reason: "length",
    },
  ],
  usage,
  prompt_token_ids: [1, 2, 3],
};

function parse(fields: object): ReturnType<typeof completionsDialect.parse> {
  return completionsDialect.parse(JSON.stringify({ model: "flight", prompt: "x", ...fields }));
}

describe("a completion request", () => {
  it("asks inference for exactly the version, with ids and log-probabilities", () => {
    const { own } = parse({ max_tokens: 5, stream: true, user: "u", top_p: 0.5, stop: null });
    expect(own.path).toBe("/v1/completions");
    expect(JSON.parse(own.body("flight@13", "train"))).toEqual({
      model: "flight@13",
      prompt: "x",
      max_tokens: 5,
      stream: true,
      stream_options: { include_usage: true },
      n: 1,
      temperature: 1,
      top_p: 1,
      top_k: -1,
      logprobs: 1,
      return_token_ids: true,
    });
    expect(JSON.parse(parse({ top_p: 0.5, logprobs: 3, temperature: 0 }).own.body("flight@13", "live"))).toEqual({
      model: "flight@13",
      prompt: "x",
      n: 1,
      temperature: 0,
      top_p: 0.5,
      logprobs: 3,
      return_token_ids: true,
    });
  });

  it.each([[["x"]], [[1, 2, 3]], [[[1, 2, 3]]]])("takes the prompt %j", (prompt) => {
    expect(JSON.parse(parse({ prompt }).own.body("flight@13", "train"))).toMatchObject({ prompt });
  });

  it.each([
    [{ prompt: ["a", "b"] }, "prompt"],
    [{ prompt: [] }, "prompt"],
    [{ prompt: undefined }, "prompt"],
    [{ n: 2 }, "n: must be 1"],
    [{ echo: true }, "echo: must be false"],
    [{ suffix: "." }, "suffix"],
    [{ max_tokens: 0 }, "max_tokens"],
  ])("refuses %j", (fields, wanted) => {
    expect(() => parse(fields)).toThrow(wanted);
  });
});

describe("a completion of inference", () => {
  it("is read as a chat's", () => {
    const chat = parse({}).own.asChat(upstream);
    expect(chat).toMatchObject({ model: "flight@13", usage, prompt_token_ids: [1, 2, 3] });
    const [choice] = chat["choices"] as Record<string, unknown>[];
    expect(choice).toMatchObject({
      message: { role: "assistant", content: "ab" },
      token_ids: [7, 8],
      finish_reason: "length",
    });
    expect(readSampled(choice ?? {})).toEqual([
      { text: "a", logprob: -0.5 },
      { text: "b", logprob: -1 },
    ]);
  });

  it("becomes OpenAI's answer, with log-probabilities only where asked for", () => {
    const wanted = parse({ logprobs: 1 });
    const [choice] = wanted.own.asChat(upstream)["choices"] as { logprobs: Record<string, unknown> }[];
    const answer = {
      ...head,
      message: { content: "ab", reasoning: null, toolCalls: [] },
      finishReason: "length",
      usage,
      logprobs: choice?.logprobs ?? null,
    };
    const common = { id: "cmpl-0199", object: "text_completion", created: 12, model: "flight", usage };
    expect(wanted.whole(answer)).toEqual({
      ...common,
      choices: [{ index: 0, text: "ab", logprobs: upstream.choices[0]?.logprobs, finish_reason: "length" }],
    });
    expect(parse({}).whole(answer)).toEqual({
      ...common,
      choices: [{ index: 0, text: "ab", logprobs: null, finish_reason: "length" }],
    });
  });

  it("gives token ids to an agent that asked for them", () => {
    const wanted = parse({ return_token_ids: true });
    const [choice] = wanted.own.asChat(upstream)["choices"] as { logprobs: Record<string, unknown> }[];
    const answer = {
      ...head,
      message: { content: "ab", reasoning: null, toolCalls: [] },
      finishReason: "length",
      usage,
      logprobs: choice?.logprobs ?? null,
    };
    expect(wanted.whole(answer)).toMatchObject({
      prompt_token_ids: [1, 2, 3],
      choices: [{ text: "ab", token_ids: [7, 8], logprobs: null }],
    });
    const [data] = wanted.stream(head).text("ab", answer.logprobs).split("\n\n");
    expect(JSON.parse(data?.replace(/^data: /, "") ?? "")).toMatchObject({
      choices: [{ text: "ab", token_ids: [7, 8], prompt_token_ids: [1, 2, 3], logprobs: null }],
    });
  });

  it("streams texts, then why it ended, usage where asked for, and [DONE]", () => {
    const events = (fields: object): unknown[] => {
      const encoder = parse({ stream: true, ...fields }).stream(head);
      const text =
        encoder.start() +
        encoder.text("a", null) +
        encoder.text("", null) +
        encoder.text("b", null) +
        encoder.end({ finishReason: "stop", usage });
      return text
        .trimEnd()
        .split("\n\n")
        .map((event) => event.replace(/^data: /, ""))
        .map((data) => (data === "[DONE]" ? data : (JSON.parse(data) as unknown)));
    };
    const common = { id: "cmpl-0199", object: "text_completion", created: 12, model: "flight" };
    const chunk = (text: string, finish: string | null): object => ({
      ...common,
      choices: [{ index: 0, text, logprobs: null, finish_reason: finish }],
    });
    expect(events({})).toEqual([chunk("a", null), chunk("b", null), chunk("", "stop"), "[DONE]"]);
    expect(events({ stream_options: { include_usage: true } })).toEqual([
      chunk("a", null),
      chunk("b", null),
      chunk("", "stop"),
      { ...common, choices: [], usage },
      "[DONE]",
    ]);
  });
});
