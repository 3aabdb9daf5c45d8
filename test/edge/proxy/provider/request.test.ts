import { describe, expect, it } from "vitest";
import type { DialectName } from "../../../../edge/proxy/dialect.ts";
import { givenBack, providerHeaders, providerUrl, toolMessages } from "../../../../edge/proxy/provider/request.ts";

describe("where a provider takes a dialect", () => {
  it.each<[string, DialectName, string]>([
    ["http://127.0.0.1:9", "chat", "http://127.0.0.1:9/v1/chat/completions"],
    ["https://api.example.com/v1", "responses", "https://api.example.com/v1/responses"],
    ["https://api.example.com/openai/v1", "completions", "https://api.example.com/openai/v1/completions"],
    ["https://api.example.com/v1beta/openai", "embeddings", "https://api.example.com/v1beta/openai/embeddings"],
    ["https://api.example.com", "messages", "https://api.example.com/v1/messages"],
    ["https://api.example.com/v1", "messages", "https://api.example.com/v1/messages"],
    ["https://api.example.com/anthropic", "messages", "https://api.example.com/anthropic/v1/messages"],
  ])("%s takes %s at %s", (base, dialect, wanted) => {
    expect(providerUrl(base, dialect)).toBe(wanted);
  });
});

describe("a provider's request headers", () => {
  const given = new Headers({
    authorization: "Bearer rollout-token",
    "x-api-key": "rollout-token",
    cookie: "session=1",
    connection: "keep-alive, x-hop",
    "x-hop": "1",
    "x-forwarded-for": "10.0.0.1",
    host: "edge",
    "content-length": "3",
    "transfer-encoding": "chunked",
    accept: "text/event-stream",
    "anthropic-version": "2026-10-21",
    "anthropic-beta": "b",
    "openai-beta": "o",
  });

  it("have the provider's key and how the dialect is meant, nothing else of the agent's", () => {
    expect(Object.fromEntries(providerHeaders(given, "responses", "sk-theirs"))).toEqual({
      accept: "text/event-stream",
      "anthropic-beta": "b",
      "anthropic-version": "2026-10-21",
      "openai-beta": "o",
      authorization: "Bearer sk-theirs",
      "content-type": "application/json",
    });
    expect(Object.fromEntries(providerHeaders(new Headers(), "messages", "sk-theirs"))).toEqual({
      "anthropic-version": "2023-06-01",
      "content-type": "application/json",
      "x-api-key": "sk-theirs",
    });
    expect(providerHeaders(given, "chat", null).has("authorization")).toBe(false);
  });

  it("come back only where they tell of the provider's request and limits", () => {
    const headers = new Headers({
      "x-request-id": "req_1",
      "x-ratelimit-remaining-tokens": "5",
      "set-cookie": "a=b",
      "content-encoding": "gzip",
      location: "https://elsewhere",
    });
    expect(givenBack(headers)).toEqual({ "x-request-id": "req_1", "x-ratelimit-remaining-tokens": "5" });
  });
});

describe("the tool results of a request that is passed on", () => {
  it("are those of its dialect", () => {
    const messages = [
      { role: "user", content: [{ type: "image" }] },
      { role: "assistant", content: [{ type: "tool_use", id: "a", name: "add", input: {} }] },
      { role: "user", content: [{ type: "tool_result", tool_use_id: "a", content: "no", is_error: true }] },
      { role: "user", content: [{ type: "tool_result", tool_use_id: "unknown", content: "?" }] },
    ];
    expect(toolMessages("messages", { messages })).toEqual([
      { role: "tool", tool_call_id: "a", name: "add", content: '{"error":"no"}' },
    ]);
    const input = [
      { type: "function_call", call_id: "b", name: "mul", arguments: "{}" },
      { type: "function_call_output", call_id: "b", output: "4" },
    ];
    expect(toolMessages("responses", { input })).toEqual([
      { role: "tool", tool_call_id: "b", name: "mul", content: "4" },
    ]);
    const chat = [{ role: "tool", tool_call_id: "c", content: "1" }];
    expect(toolMessages("chat", { messages: [...chat, "nonsense"] })).toEqual(chat);
    expect(toolMessages("embeddings", { input: "x" })).toEqual([]);
  });
});
