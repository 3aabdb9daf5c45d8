import { describe, expect, it } from "vitest";
import type { ChatMessage } from "../../../../edge/proxy/dialect.ts";
import {
  readResponsesRequest,
  wantsLogprobs,
  type ReadResponsesRequest,
} from "../../../../edge/proxy/responses/request.ts";

const none = { history: (): Promise<never> => Promise.reject(new Error("no history was to be asked for")) };
const asked = (fields: object): Promise<ReadResponsesRequest> =>
  readResponsesRequest(JSON.stringify({ model: "m", input: "hi", ...fields }), none);
const chat = async (fields: object): Promise<unknown> => (await asked(fields)).chat;

const tool = { type: "function", name: "f", description: "does", parameters: { type: "object" }, strict: true };
const nested = {
  type: "function",
  function: { name: "f", description: "does", parameters: { type: "object" }, strict: true },
};
const other = { type: "function", name: "g", parameters: null, strict: null };

describe("readResponsesRequest", () => {
  it("makes a chat request of no more than was asked for", async () => {
    expect(await chat({})).toEqual({ model: "m", messages: [{ role: "user", content: "hi" }] });
  });

  it("gives sampling, limits and the wish for a stream their names in chat", async () => {
    expect(
      await chat({
        stream: true,
        stream_options: { include_obfuscation: false },
        max_output_tokens: 9,
        temperature: 0,
        top_p: 0.5,
      }),
    ).toEqual({
      model: "m",
      messages: [{ role: "user", content: "hi" }],
      stream: true,
      max_tokens: 9,
      temperature: 0,
      top_p: 0.5,
    });
  });

  it("takes null for whatever is not set", async () => {
    const unset = [
      "instructions",
      "previous_response_id",
      "stream",
      "tools",
      "tool_choice",
      "text",
      "include",
      "reasoning",
    ];
    const more = [
      "max_output_tokens",
      "temperature",
      "top_p",
      "top_logprobs",
      "metadata",
      "store",
      "truncation",
      "background",
    ];
    expect(await chat(Object.fromEntries([...unset, ...more].map((name) => [name, null])))).toEqual({
      model: "m",
      messages: [{ role: "user", content: "hi" }],
    });
  });

  it("puts instructions first and keeps them out of the conversation that goes on", async () => {
    const { chat: given, conversation } = await asked({ instructions: "be brief" });
    expect(given.messages).toEqual([
      { role: "system", content: "be brief" },
      { role: "user", content: "hi" },
    ]);
    expect(conversation).toEqual([{ role: "user", content: "hi" }]);
  });

  it("goes on from an earlier response, under its own instructions", async () => {
    const earlier: ChatMessage[] = [
      { role: "user", content: "q" },
      { role: "assistant", content: "a" },
    ];
    const history = (id: string): Promise<ChatMessage[]> => Promise.resolve(id === "resp_1" ? earlier : []);
    const text = JSON.stringify({ model: "m", input: [], previous_response_id: "resp_1", instructions: "new" });
    const { chat: given, conversation } = await readResponsesRequest(text, { history });
    expect(given.messages).toEqual([{ role: "system", content: "new" }, ...earlier]);
    expect(conversation).toEqual(earlier);
  });

  it("lets the failure to find an earlier response through", async () => {
    const history = (): Promise<never> => Promise.reject(new Error("unknown"));
    const text = JSON.stringify({ model: "m", input: "hi", previous_response_id: "resp_1" });
    await expect(readResponsesRequest(text, { history })).rejects.toThrow("unknown");
  });

  it("nests tools as chat does, without what is null", async () => {
    expect(await chat({ tools: [tool, other], parallel_tool_calls: false })).toMatchObject({
      tools: [nested, { type: "function", function: { name: "g" } }],
      tool_choice: "auto",
      parallel_tool_calls: false,
    });
  });

  it.each([
    ["auto", "auto"],
    ["none", "none"],
    ["required", "required"],
    [
      { type: "function", name: "g" },
      { type: "function", function: { name: "g" } },
    ],
  ])("reads the tool choice %j", async (given, wanted) => {
    expect(await chat({ tools: [tool, other], tool_choice: given })).toMatchObject({ tool_choice: wanted });
  });

  it("shows the policy only the tools that are allowed", async () => {
    const choice = { type: "allowed_tools", mode: "required", tools: [{ type: "function", name: "f" }] };
    expect(await chat({ tools: [tool, other], tool_choice: choice })).toMatchObject({
      tools: [nested],
      tool_choice: "required",
    });
  });

  it("says nothing of tools where there are none", async () => {
    expect(Object.keys(Object(await chat({ tools: [], tool_choice: "auto", parallel_tool_calls: true })))).toEqual([
      "model",
      "messages",
    ]);
  });

  it("turns text.format into response_format", async () => {
    const format = { type: "json_schema", name: "o", schema: { type: "object" }, strict: true, description: null };
    expect(await chat({ text: { format, verbosity: "low" } })).toMatchObject({
      response_format: { type: "json_schema", json_schema: { name: "o", schema: { type: "object" }, strict: true } },
    });
    expect(await chat({ text: { format: { type: "json_object" } } })).toMatchObject({
      response_format: { type: "json_object" },
    });
    expect(await chat({ text: { format: { type: "text" } } })).not.toHaveProperty("response_format");
    expect(await chat({ text: {} })).not.toHaveProperty("response_format");
  });

  it("asks for logprobs where they are included or counted", async () => {
    const included = await asked({ include: ["message.output_text.logprobs"] });
    expect(included.chat).toMatchObject({ logprobs: true, top_logprobs: 0 });
    expect(wantsLogprobs(included.body)).toBe(true);
    expect(await chat({ top_logprobs: 3 })).toMatchObject({ logprobs: true, top_logprobs: 3 });
    const not = await asked({ include: ["reasoning.encrypted_content"], top_logprobs: 0 });
    expect(not.chat).not.toHaveProperty("logprobs");
    expect(wantsLogprobs(not.body)).toBe(false);
  });

  it("keeps from inference what only OpenAI's service has a use for, and passes on what it may know", async () => {
    const service = {
      metadata: { a: "b" },
      store: false,
      user: "u",
      service_tier: "flex",
      truncation: "auto",
      max_tool_calls: 3,
    };
    const more = { reasoning: { effort: "high" }, prompt_cache_key: "k", safety_identifier: "s", seed: 7, stop: ["x"] };
    expect(await chat({ ...service, ...more })).toEqual({
      model: "m",
      messages: [{ role: "user", content: "hi" }],
      seed: 7,
      stop: ["x"],
    });
  });

  it.each([
    ["model", { model: "" }],
    ["input", { input: 3 }],
    ["input", { input: undefined }],
    ["input", { input: [] }],
    ["temperature", { temperature: 3 }],
    ["max_output_tokens", { max_output_tokens: 0 }],
    ["top_logprobs", { top_logprobs: 21 }],
    ["include.0", { include: ["everything"] }],
    ["background", { background: true }],
    ["conversation", { conversation: "conv_1" }],
    ["prompt", { prompt: { id: "p" } }],
    ["moderation", { moderation: { model: "m" } }],
    ["context_management", { context_management: [{ type: "compaction" }] }],
    ["truncation", { truncation: "middle" }],
    ["text.format.name", { text: { format: { type: "json_schema", schema: {} } } }],
    ["text.format.type", { text: { format: { type: "grammar" } } }],
    ["tools.0", { tools: ["f"] }],
    ["tools.1.name", { tools: [tool, { type: "function" }] }],
    ["tools.0.parameters", { tools: [{ type: "function", name: "f", parameters: "x" }] }],
    ["tool_choice", { tool_choice: "any" }],
    ["tool_choice.name", { tool_choice: { type: "function" } }],
    ["tool_choice.type", { tool_choice: { type: "web_search_preview" } }],
    ["tool_choice.mode", { tool_choice: { type: "allowed_tools", tools: [] } }],
    ["tool_choice.tools", { tool_choice: { type: "allowed_tools", mode: "auto" } }],
    [
      "tool_choice.tools.0",
      { tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "function", name: "f" }] } },
    ],
    ["messages", { messages: [] }],
    ["max_tokens", { max_tokens: 3 }],
    ["response_format", { response_format: { type: "text" } }],
    ["return_token_ids", { return_token_ids: true }],
    ["n", { n: 2 }],
  ])("refuses a %s that is not usable", async (path, fields) => {
    await expect(asked(fields)).rejects.toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: expect.stringMatching(new RegExp(`^the body's ${path.replaceAll(".", "\\.")} is not usable: .`)),
    });
  });

  it.each(["web_search", "file_search", "computer_use_preview", "code_interpreter", "mcp", "custom"])(
    "names the hosted tool %s that it refuses",
    async (type) => {
      await expect(asked({ tools: [{ type }] })).rejects.toThrow(`a policy calls functions only, "${type}" came`);
    },
  );

  it.each(["{", "[]", "null", '"x"'])("refuses a body such as %s", async (text) => {
    await expect(readResponsesRequest(text, none)).rejects.toMatchObject({ code: "ERR_INVALID_REQUEST" });
  });
});
