import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { chatOfMessages, parseMessagesRequest, showsThinking } from "../../../../edge/proxy/messages/request.ts";
import { isSuccess } from "../../../../edge/record/success.ts";

const minimal = { model: "flight", max_tokens: 64, messages: [{ role: "user", content: "hi" }] };

function chat(fields: object): ReturnType<typeof chatOfMessages> {
  return chatOfMessages(parseMessagesRequest(JSON.stringify({ ...minimal, ...fields })));
}

function recorded(file: string): { body: object }[] {
  return readFileSync(join(import.meta.dirname, "../../../wire", file), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { body: object });
}

describe("a messages request", () => {
  it("of Anthropic's SDK in a tool's second turn is the same conversation as a chat", () => {
    const [first, second] = recorded("js-anthropic-stream.jsonl");
    const tools = [
      {
        type: "function",
        function: {
          name: "calculator",
          description: "adds",
          parameters: {
            type: "object",
            properties: { a: { type: "number" }, b: { type: "number" } },
            required: ["a", "b"],
            additionalProperties: false,
          },
        },
      },
    ];
    const question = { role: "user", content: "What is 17 + 25? Use the calculator tool." };
    const base = { model: "mock-1", max_tokens: 256, stream: true, tools };
    expect(chat(first?.body ?? {})).toEqual({ ...base, messages: [question] });
    expect(chat(second?.body ?? {})).toEqual({
      ...base,
      messages: [
        question,
        {
          role: "assistant",
          content: null,
          tool_calls: [
            {
              id: "toolu_ua6kdpmvc4",
              type: "function",
              function: { name: "calculator", arguments: '{"a":17,"b":25}' },
            },
          ],
        },
        { role: "tool", tool_call_id: "toolu_ua6kdpmvc4", content: "42" },
      ],
    });
  });

  it("keeps sampling, stops, the user and the system prompt", () => {
    expect(
      chat({
        system: [{ type: "text", text: "be brief", cache_control: { type: "ephemeral" } }],
        temperature: 0.5,
        top_p: 0.9,
        top_k: 40,
        stop_sequences: ["END"],
        metadata: { user_id: "u1" },
        service_tier: "auto",
      }),
    ).toEqual({
      model: "flight",
      max_tokens: 64,
      messages: [
        { role: "system", content: "be brief" },
        { role: "user", content: "hi" },
      ],
      temperature: 0.5,
      top_p: 0.9,
      top_k: 40,
      stop: ["END"],
      user: "u1",
    });
  });

  it("keeps several texts apart and tool results in their place", () => {
    const { messages } = chat({
      messages: [
        { role: "user", content: "go" },
        {
          role: "assistant",
          content: [
            { type: "thinking", thinking: "two at once", signature: "x" },
            { type: "redacted_thinking", data: "?" },
            { type: "text", text: "Looking." },
            { type: "tool_use", id: "a", name: "one", input: {} },
            { type: "tool_use", id: "b", name: "two", input: { q: "x" } },
          ],
        },
        {
          role: "user",
          content: [
            { type: "tool_result", tool_use_id: "a" },
            { type: "tool_result", tool_use_id: "b", content: [{ type: "text", text: "found" }] },
            { type: "text", text: "and now?" },
            { type: "text", text: "quickly" },
          ],
        },
      ],
    });
    expect(messages).toEqual([
      { role: "user", content: "go" },
      {
        role: "assistant",
        content: "Looking.",
        reasoning_content: "two at once",
        tool_calls: [
          { id: "a", type: "function", function: { name: "one", arguments: "{}" } },
          { id: "b", type: "function", function: { name: "two", arguments: '{"q":"x"}' } },
        ],
      },
      { role: "tool", tool_call_id: "a", content: "" },
      { role: "tool", tool_call_id: "b", content: "found" },
      {
        role: "user",
        content: [
          { type: "text", text: "and now?" },
          { type: "text", text: "quickly" },
        ],
      },
    ]);
  });

  it.each([
    ["no such city", '{"error":"no such city"}'],
    ['{"error":"down"}', '{"error":"down"}'],
    ['{"error":null,"rows":[]}', '{"error":"{\\"error\\":null,\\"rows\\":[]}"}'],
    [[{ type: "text", text: "no such city" }], '{"error":"no such city"}'],
    [undefined, '{"error":"the tool failed without a word"}'],
  ])("shows a tool's failure to the model and to rewards: %j", (content, wanted) => {
    const { messages } = chat({
      messages: [{ role: "user", content: [{ type: "tool_result", tool_use_id: "a", is_error: true, content }] }],
    });
    expect(messages).toEqual([{ role: "tool", tool_call_id: "a", content: wanted }]);
    expect(isSuccess(wanted)).toBe(false);
  });

  it.each([
    [{ type: "auto" }, { tool_choice: "auto" }],
    [
      { type: "any", disable_parallel_tool_use: true },
      { tool_choice: "required", parallel_tool_calls: false },
    ],
    [{ type: "tool", name: "calc" }, { tool_choice: { type: "function", function: { name: "calc" } } }],
    [{ type: "none" }, { tool_choice: "none" }],
  ])("translates tool_choice %j", (choice, wanted) => {
    expect(chat({ tool_choice: choice, tools: [{ name: "calc", input_schema: { type: "object" } }] })).toMatchObject(
      wanted,
    );
  });

  it("asks for a structured output as chat does", () => {
    const schema = { type: "object", properties: { a: { type: "number" } } };
    expect(chat({ output_config: { format: { type: "json_schema", schema } } })).toMatchObject({
      response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
    });
  });

  it.each([
    [{}, false],
    [{ thinking: { type: "disabled" } }, false],
    [{ thinking: { type: "enabled", budget_tokens: 1024 } }, true],
    [{ thinking: { type: "adaptive" } }, true],
  ])("shows thinking only where it is asked for: %j", (fields, wanted) => {
    expect(showsThinking(parseMessagesRequest(JSON.stringify({ ...minimal, ...fields })))).toBe(wanted);
  });

  const user = (...content: object[]): object => ({ messages: [{ role: "user", content }] });
  it.each([
    ["no max_tokens", { max_tokens: undefined }, "max_tokens"],
    ["an image", user({ type: "image", source: {} }), "messages.0.content.0: is a block image"],
    [
      "a document",
      user({ type: "text", text: "x" }, { type: "document" }),
      "messages.0.content.1: is a block document",
    ],
    [
      "an image in a tool result",
      user({ type: "tool_result", tool_use_id: "a", content: [{ type: "image" }] }),
      "block image",
    ],
    ["a tool result without its call", user({ type: "tool_result", content: "x" }), "messages.0.content.0.tool_use_id"],
    ["no block at all", user(), "messages.0.content: must have a block"],
    [
      "a prefilled answer",
      { messages: [...minimal.messages, { role: "assistant", content: "The" }] },
      "must end with the user's turn",
    ],
    [
      "a tool of Anthropic's",
      { tools: [{ type: "web_search_20250305", name: "web_search" }] },
      "tools.0: is web_search_20250305",
    ],
    ["a tool without a schema", { tools: [{ name: "x" }] }, "tools.0.input_schema"],
    ["an MCP server", { mcp_servers: [{ type: "url", url: "https://x" }] }, "mcp_servers"],
    ["an unknown field", { surprise: 1 }, "surprise"],
    ["an unknown role", { messages: [{ role: "tool", content: "x" }] }, "messages.0.role"],
  ])("refuses %s and says where", (_what, fields, wanted) => {
    expect(() => chat(fields)).toThrow(wanted);
    expect(() => chat(fields)).toThrow(expect.objectContaining({ code: "ERR_INVALID_REQUEST" }) as Error);
  });

  it("refuses what is not JSON", () => {
    expect(() => parseMessagesRequest("{")).toThrow("not valid JSON");
  });
});
