import { readdirSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { join } from "node:path";
import OpenAI, { APIError } from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { isObject } from "../../../../edge/proxy/answer.ts";
import type { Answer, AnswerEncoder, ChatMessage } from "../../../../edge/proxy/dialect.ts";
import { responses, type ResponsesRequest } from "../../../../edge/proxy/responses/responses.ts";

/** What real clients sent (recorded; one request a line): each must become a chat request that loses nothing. */
const FOLDER = join(import.meta.dirname, "../../../wire/responses");
const files = readdirSync(FOLDER).filter((file) => file.endsWith(".jsonl"));
const recorded = z.object({ path: z.literal("/v1/responses"), body: z.looseObject({ model: z.string() }) });
/** The chat request as inference takes it. */
const chatSchema = z.strictObject({
  model: z.literal("mock-1"),
  messages: z
    .array(
      z.discriminatedUnion("role", [
        z.strictObject({ role: z.enum(["system", "user"]), content: z.string().min(1) }),
        z.strictObject({
          role: z.literal("assistant"),
          content: z.string().nullable(),
          tool_calls: z
            .array(
              z.strictObject({
                id: z.string().min(1),
                type: z.literal("function"),
                function: z.strictObject({ name: z.string().min(1), arguments: z.string() }),
              }),
            )
            .optional(),
        }),
        z.strictObject({ role: z.literal("tool"), tool_call_id: z.string().min(1), content: z.string() }),
      ]),
    )
    .min(1),
  stream: z.literal(true).optional(),
  temperature: z.number().optional(),
  tools: z
    .array(
      z.strictObject({
        type: z.literal("function"),
        function: z.strictObject({
          name: z.string().min(1),
          description: z.string().optional(),
          parameters: z.looseObject({}).optional(),
          strict: z.boolean().optional(),
        }),
      }),
    )
    .optional(),
  tool_choice: z.literal("auto").optional(),
  parallel_tool_calls: z.literal(false).optional(),
  response_format: z
    .strictObject({
      type: z.literal("json_schema"),
      json_schema: z.strictObject({ name: z.string(), strict: z.literal(true), schema: z.looseObject({}) }),
    })
    .optional(),
});

const EARLIER: ChatMessage[] = [
  { role: "user", content: "What is 17 + 25?" },
  {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "call_qqihkesc1e", type: "function", function: { name: "calculator", arguments: "{}" } }],
  },
];
const history = (): Promise<ChatMessage[]> => Promise.resolve(EARLIER);

const KEY = "0199aaaabbbbccccddddeeeeffff0001";
/** A client refers to items by the ids that it was given: ours here, those of another server when it was recorded. */
const withOurIds = (line: string): string => line.replaceAll("fc_so602w611y", `fc_${KEY}`);
const referred: ChatMessage = {
  role: "assistant",
  content: null,
  tool_calls: [
    { id: "call_sptqmldobm", type: "function", function: { name: "calculator", arguments: '{"a":17,"b":25}' } },
  ],
};
const answer = (): Promise<ChatMessage> => Promise.resolve(referred);

describe("every framework's recorded request to responses", () => {
  it("is there to be read", () => {
    expect(files).toHaveLength(14);
  });

  it.each(files)("%s becomes a chat request", async (file) => {
    for (const line of readFileSync(join(FOLDER, file), "utf8").trim().split("\n")) {
      const { body } = recorded.parse(JSON.parse(withOurIds(line)));
      const { chat } = await responses.parse(JSON.stringify(body), { history, answer });
      const { messages, tools } = chatSchema.parse(chat);
      expect(tools?.map((tool) => tool.function.name)).toEqual(
        Array.isArray(body["tools"]) ? body["tools"].map((tool: unknown) => isObject(tool) && tool["name"]) : undefined,
      );
      // Each result still follows the call that it is of.
      const calls = messages.flatMap((message) => (message.role === "assistant" ? (message.tool_calls ?? []) : []));
      const results = messages.filter((message) => message.role === "tool");
      expect(results.map((message) => message.tool_call_id)).toEqual(calls.map(({ id }) => id));
    }
  });

  it("keeps the words of a whole run: handoff, calls, results", async () => {
    const [, , last] = readFileSync(join(FOLDER, "js-agents-responses.jsonl"), "utf8").trim().split("\n");
    const { body } = recorded.parse(JSON.parse(last ?? ""));
    const { chat } = await responses.parse(JSON.stringify(body), { history });
    const call = (id: string, name: string, text: string): object => ({
      role: "assistant",
      content: null,
      tool_calls: [{ id, type: "function", function: { name, arguments: text } }],
    });
    expect(chat.messages).toEqual([
      { role: "system", content: "Do sums." },
      { role: "user", content: "What is 17 + 25? Use the calculator tool." },
      call("call_qxtminxts7", "transfer_to_math", "{}"),
      { role: "tool", tool_call_id: "call_qxtminxts7", content: '{"assistant":"math"}' },
      call("call_r16s05yjp2", "calculator", '{"a":17,"b":25}'),
      { role: "tool", tool_call_id: "call_r16s05yjp2", content: "42" },
    ]);
  });

  it("puts what is referred to in its place", async () => {
    const [, second] = readFileSync(join(FOLDER, "js-aisdk5-chat.jsonl"), "utf8").trim().split("\n");
    const { body } = recorded.parse(JSON.parse(withOurIds(second ?? "")));
    const { chat } = await responses.parse(JSON.stringify(body), { history, answer });
    expect(chat.messages).toEqual([
      { role: "user", content: "What is 17 + 25? Use the calculator tool." },
      referred,
      { role: "tool", tool_call_id: "call_sptqmldobm", content: "42" },
    ]);
  });

  it("goes on from an earlier response", async () => {
    const [, second] = readFileSync(join(FOLDER, "js-openai-responses-prev.jsonl"), "utf8").trim().split("\n");
    const { body } = recorded.parse(JSON.parse(second ?? ""));
    const { chat } = await responses.parse(JSON.stringify(body), { history });
    expect(chat.messages).toEqual([...EARLIER, { role: "tool", tool_call_id: "call_qqihkesc1e", content: "42" }]);
  });
});

const usage = { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 };
const weather = {
  type: "function",
  name: "weather",
  parameters: { type: "object", properties: {}, additionalProperties: false },
  strict: true,
} as const;

/** Answers each request by what its input says: `text`, `calls`, `cut` or `break`. */
function answerTo(asked: ResponsesRequest): Answer {
  const wanted = String(asked.chat.messages.at(-1)?.["content"]);
  return {
    id: `ca_${KEY}`,
    startedAt: 1_800_000_000_000,
    model: asked.chat.model,
    message: {
      content: wanted === "calls" ? null : "The answer is 42.",
      reasoning: "6 × 7",
      toolCalls:
        wanted === "calls"
          ? ["a", "b"].map((id) => ({
              id,
              type: "function",
              function: { name: "weather", arguments: `{"at":"${id}"}` },
            }))
          : [],
    },
    finishReason: wanted === "cut" ? "length" : wanted === "calls" ? "tool_calls" : "stop",
    usage,
    logprobs: null,
  };
}

function eventsOf(asked: ResponsesRequest): string {
  const { message, finishReason, ...head } = answerTo(asked);
  const encoder: AnswerEncoder = asked.stream(head);
  let sent = encoder.start();
  for (const piece of ["6 ", "× 7"]) sent += encoder.reasoning(piece);
  if (asked.chat.messages.at(-1)?.["content"] === "break") {
    return (
      sent + encoder.text("The", null) + encoder.fail(new FulgurError("ERR_UPSTREAM", "inference failed: it broke"))
    );
  }
  for (const piece of message.content?.split(/(?= )/) ?? []) sent += encoder.text(piece, null);
  for (const [index, { id, function: called }] of message.toolCalls.entries()) {
    sent += encoder.toolCall({ index, id, name: called.name, argumentsDelta: "" });
    for (const piece of called.arguments.split(/(?=:)/)) sent += encoder.toolCall({ index, argumentsDelta: piece });
  }
  return sent + encoder.end({ finishReason, usage });
}

describe("the official client", () => {
  let server: Server;
  let client: OpenAI;

  beforeAll(async () => {
    server = createServer((request, reply) => {
      void (async () => {
        let text = "";
        for await (const chunk of request) text += String(chunk);
        try {
          const asked = await responses.parse(text, { history });
          const isStream = asked.chat.stream === true;
          reply.setHeader("content-type", isStream ? "text/event-stream" : "application/json");
          reply.end(isStream ? eventsOf(asked) : JSON.stringify(asked.whole(answerTo(asked))));
        } catch (thrown) {
          const response = responses.errorResponse(thrown);
          reply.writeHead(response.status, { "content-type": "application/json" }).end(await response.text());
        }
      })();
    });
    await new Promise<void>((listening) => void server.listen(0, "127.0.0.1", listening));
    const address = server.address();
    if (address === null || typeof address === "string") throw new Error("the server has no port");
    client = new OpenAI({ baseURL: `http://127.0.0.1:${address.port}/v1`, apiKey: "k", maxRetries: 0 });
  });
  afterAll(() => new Promise((closed) => void server.close(closed)));

  it("reads a whole answer", async () => {
    const response = await client.responses.create({ model: "m", input: "text" });
    expect(response.output_text).toBe("The answer is 42.");
    expect(response.id).toBe(`resp_${KEY}`);
    expect(response.output.map(({ type }) => type)).toEqual(["reasoning", "message"]);
    expect(response.usage?.total_tokens).toBe(7);
  });

  it("parses the arguments of parallel calls", async () => {
    const response = await client.responses.parse({ model: "m", input: "calls", tools: [weather] });
    expect(response.output).toMatchObject([
      { type: "reasoning" },
      { type: "function_call", call_id: "a", parsed_arguments: { at: "a" } },
      { type: "function_call", call_id: "b", parsed_arguments: { at: "b" } },
    ]);
  });

  it("learns that an answer was cut", async () => {
    const response = await client.responses.create({ model: "m", input: "cut" });
    expect(response.status).toBe("incomplete");
    expect(response.incomplete_details).toEqual({ reason: "max_output_tokens" });
  });

  it.each(["text", "calls", "cut"])("gathers from the stream of %s what it reads whole", async (input) => {
    const asked = { model: "m", input, tools: [weather] };
    const whole = await client.responses.create(asked);
    const stream = client.responses.stream(asked);
    let text = "";
    let called = "";
    stream.on("response.output_text.delta", ({ delta }) => (text += delta));
    stream.on("response.function_call_arguments.delta", ({ delta }) => (called += delta));
    const final = await stream.finalResponse();
    expect(text).toBe(whole.output_text);
    expect(called).toBe(whole.output.map((item) => (item.type === "function_call" ? item.arguments : "")).join(""));
    expect(final.output).toMatchObject(JSON.parse(JSON.stringify(whole.output)));
    expect(final.output_text).toBe(whole.output_text);
    expect(final.status).toBe(whole.status);
    expect(final.usage).toEqual(whole.usage);
  });

  it("raises a failure in mid-stream with its message", async () => {
    const stream = await client.responses.create({ model: "m", input: "break", stream: true });
    const seen: string[] = [];
    const failure = await (async () => {
      for await (const { type } of stream) seen.push(type);
    })().catch((thrown: unknown) => thrown);
    expect(seen).toContain("response.failed");
    expect(failure).toBeInstanceOf(APIError);
    expect(String(failure)).toContain("inference failed: it broke");
    await expect(client.responses.stream({ model: "m", input: "break" }).finalResponse()).rejects.toThrow("it broke");
  });

  it("gets a refusal as a bad request that says why", async () => {
    const asked = client.responses.create({ model: "m", input: "text", tools: [{ type: "web_search" }] });
    await expect(asked).rejects.toMatchObject({
      status: 400,
      type: "invalid_request_error",
      message: expect.stringContaining('"web_search" came'),
    });
  });
});
