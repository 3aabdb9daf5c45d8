import { describe, expect, it } from "vitest";
import type { Answer } from "../../../../edge/proxy/dialect.ts";
import { textLogprobs, wholeResponse } from "../../../../edge/proxy/responses/answer.ts";
import { readResponsesRequest } from "../../../../edge/proxy/responses/request.ts";

const KEY = "0199aaaabbbbccccddddeeeeffff0001";
const none = { history: (): Promise<never> => Promise.reject(new Error("no history was to be asked for")) };
const call = (id: string, text = "{}"): Answer["message"]["toolCalls"][number] => ({
  id,
  type: "function",
  function: { name: "f", arguments: text },
});

async function whole(answer: Partial<Answer> = {}, asked: object = {}): Promise<Record<string, unknown>> {
  const { body } = await readResponsesRequest(JSON.stringify({ model: "m", input: "hi", ...asked }), none);
  return wholeResponse(body, {
    id: `ca_${KEY}`,
    startedAt: 1_800_000_000_999,
    model: "m",
    message: { content: "42", reasoning: null, toolCalls: [] },
    finishReason: "stop",
    usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 },
    logprobs: null,
    ...answer,
  });
}

describe("wholeResponse", () => {
  it("is OpenAI's object, with its defaults for what was not asked", async () => {
    expect(await whole()).toEqual({
      id: `resp_${KEY}`,
      object: "response",
      created_at: 1_800_000_000,
      status: "completed",
      background: false,
      error: null,
      incomplete_details: null,
      instructions: null,
      max_output_tokens: null,
      max_tool_calls: null,
      metadata: {},
      model: "m",
      output: [
        {
          id: `msg_${KEY}`,
          type: "message",
          status: "completed",
          role: "assistant",
          content: [{ type: "output_text", text: "42", annotations: [] }],
        },
      ],
      parallel_tool_calls: true,
      previous_response_id: null,
      prompt_cache_key: null,
      reasoning: { effort: null, summary: null },
      safety_identifier: null,
      service_tier: "default",
      store: true,
      temperature: 1,
      text: { format: { type: "text" } },
      tool_choice: "auto",
      tools: [],
      top_logprobs: 0,
      top_p: 1,
      truncation: "disabled",
      usage: {
        input_tokens: 5,
        input_tokens_details: { cached_tokens: 0, cache_write_tokens: 0 },
        output_tokens: 2,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 7,
      },
      user: null,
    });
  });

  it("repeats what was asked", async () => {
    const asked = {
      instructions: "be brief",
      max_output_tokens: 9,
      metadata: { task: "t1" },
      parallel_tool_calls: false,
      reasoning: { effort: "low" },
      store: false,
      temperature: 0.5,
      text: { format: { type: "json_object" }, verbosity: "low" },
      tool_choice: { type: "function", name: "f" },
      top_p: 0.9,
      user: "u",
    };
    const tools = [{ type: "function", name: "f", parameters: { type: "object" } }];
    expect(await whole({}, { ...asked, tools })).toMatchObject({
      ...asked,
      reasoning: { effort: "low", summary: null },
      tools: [{ type: "function", name: "f", parameters: { type: "object" }, description: null, strict: null }],
    });
  });

  it("gives reasoning, text and calls as items in this order", async () => {
    const message = { content: "so", reasoning: "hm", toolCalls: [call("c0"), call("c1", '{"a":1}')] };
    expect((await whole({ message, finishReason: "tool_calls" }))["output"]).toEqual([
      {
        id: `rs_${KEY}`,
        type: "reasoning",
        status: "completed",
        summary: [],
        content: [{ type: "reasoning_text", text: "hm" }],
        encrypted_content: null,
      },
      expect.objectContaining({ id: `msg_${KEY}`, content: [{ type: "output_text", text: "so", annotations: [] }] }),
      { id: `fc_${KEY}`, type: "function_call", status: "completed", call_id: "c0", name: "f", arguments: "{}" },
      { id: `fc_${KEY}_1`, type: "function_call", status: "completed", call_id: "c1", name: "f", arguments: '{"a":1}' },
    ]);
  });

  it("has no message beside calls without a text, and an empty one where nothing was said at all", async () => {
    const calls = { content: "", reasoning: null, toolCalls: [call("c0")] };
    expect((await whole({ message: calls }))["output"]).toMatchObject([{ type: "function_call" }]);
    const nothing = { content: null, reasoning: null, toolCalls: [] };
    expect((await whole({ message: nothing }))["output"]).toMatchObject([{ type: "message", content: [{ text: "" }] }]);
  });

  it.each([
    ["length", "max_output_tokens"],
    ["content_filter", "content_filter"],
  ])("is incomplete after %s, and so is its last item", async (finishReason, reason) => {
    const message = { content: "so", reasoning: null, toolCalls: [call("c0", '{"a')] };
    expect(await whole({ message, finishReason })).toMatchObject({
      status: "incomplete",
      incomplete_details: { reason },
      output: [{ status: "completed" }, { status: "incomplete" }],
    });
  });

  it("tells cached and reasoning tokens where the endpoint counts them", async () => {
    const usage = {
      prompt_tokens: 5,
      completion_tokens: 2,
      total_tokens: 7,
      prompt_tokens_details: { cached_tokens: 4 },
      completion_tokens_details: { reasoning_tokens: 1 },
    };
    expect((await whole({ usage }))["usage"]).toMatchObject({
      input_tokens_details: { cached_tokens: 4 },
      output_tokens_details: { reasoning_tokens: 1 },
    });
  });

  it("gives the text's logprobs to those who asked, and to nobody else", async () => {
    const logprobs = {
      content: [
        { token: "hm", logprob: -3 },
        { token: "4", logprob: -1, bytes: [52], top_logprobs: [{ token: "5", logprob: -2 }] },
        { token: "2", logprob: -0.5 },
        { token: "<|end|>", logprob: -0.1 },
      ],
    };
    const message = { content: "42", reasoning: "hm", toolCalls: [] };
    const include = ["message.output_text.logprobs"];
    expect((await whole({ message, logprobs }, { include }))["output"]).toMatchObject([
      { type: "reasoning" },
      {
        content: [
          {
            logprobs: [
              { token: "4", logprob: -1, bytes: [52], top_logprobs: [{ token: "5", logprob: -2, bytes: [53] }] },
              { token: "2", logprob: -0.5, bytes: [50], top_logprobs: [] },
            ],
          },
        ],
      },
    ]);
    expect(JSON.stringify(await whole({ message, logprobs }))).not.toContain('logprobs":[');
  });
});

describe("textLogprobs", () => {
  const entries = ["a", "b", "c", "ab", "d"].map((token) => ({ token }));
  const tokens = (text: string, from = 0): unknown[] => textLogprobs(text, entries, { from }).map(({ token }) => token);

  it("finds the tokens that touch the text", () => {
    expect(tokens("bc")).toEqual(["b", "c"]);
    expect(tokens("ab", 1)).toEqual(["ab"]);
    expect(tokens("bd")).toEqual(["ab", "d"]);
    expect(tokens("abcab", 3)).toEqual(["a", "b", "c", "ab"]);
  });

  it("gives none for no text and all where the text is not found", () => {
    expect(tokens("")).toEqual([]);
    expect(tokens("é")).toHaveLength(5);
  });
});
