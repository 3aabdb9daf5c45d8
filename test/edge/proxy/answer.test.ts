import { describe, expect, it } from "vitest";
import { readUsage } from "../../../edge/proxy/answer.ts";
import { messagesUsage } from "../../../edge/proxy/messages/answer.ts";

const usage = { prompt_tokens: 7, completion_tokens: 5, total_tokens: 99 };

describe("readUsage", () => {
  it("adds up the total itself, and keeps the details that agents read", () => {
    expect(readUsage({ usage })).toEqual({ prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 });
    const detailed = {
      ...usage,
      prompt_tokens_details: { cached_tokens: 3, audio_tokens: 0 },
      completion_tokens_details: { reasoning_tokens: 2 },
    };
    expect(readUsage({ usage: detailed })).toEqual({
      prompt_tokens: 7,
      completion_tokens: 5,
      total_tokens: 12,
      prompt_tokens_details: { cached_tokens: 3 },
      completion_tokens_details: { reasoning_tokens: 2 },
    });
    const nulls = { ...usage, prompt_tokens_details: null, completion_tokens_details: { reasoning_tokens: null } };
    expect(readUsage({ usage: nulls })).toEqual({ prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 });
  });

  it("is undefined where either side is not counted", () => {
    expect(readUsage({ usage: { prompt_tokens: 7 } })).toBeUndefined();
    expect(readUsage({ usage: null })).toBeUndefined();
    expect(readUsage({})).toBeUndefined();
  });
});

describe("messagesUsage", () => {
  it("counts what came from a cache beside the rest, as Anthropic does", () => {
    const counted = { prompt_tokens: 7, completion_tokens: 5, total_tokens: 12 };
    const fields = { output_tokens: 5, cache_creation_input_tokens: 0 };
    expect(messagesUsage(counted)).toEqual({ ...fields, input_tokens: 7, cache_read_input_tokens: 0 });
    expect(messagesUsage({ ...counted, prompt_tokens_details: { cached_tokens: 3 } })).toEqual({
      ...fields,
      input_tokens: 4,
      cache_read_input_tokens: 3,
    });
  });
});
