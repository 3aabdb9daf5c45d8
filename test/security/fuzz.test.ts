import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { evaluatorSchema, modelTargetSchema, parseModelTarget } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import { keyIdOf } from "#shared/keys.ts";
import { ROUTES } from "#shared/routes.ts";
import { newSigningKey, tokenVerifier } from "#shared/tokens.ts";
import { parseServedName, parseVersionName, servedName, versionName } from "#shared/words.ts";
import { agentAt, askAgent } from "../../edge/dispatch/invoke.ts";
import { errorBody, statusOf } from "../../edge/http-errors.ts";
import { outboundUrl } from "../../edge/outbound-url.ts";
import { isObject } from "../../edge/proxy/answer.ts";
import { wholeToolCalls } from "../../edge/proxy/capture.ts";
import { inferenceBody, parseChatRequest } from "../../edge/proxy/chat/request.ts";
import { completionsDialect } from "../../edge/proxy/completions/completions.ts";
import type { ChatMessage, Dialect } from "../../edge/proxy/dialect.ts";
import { messagesDialect } from "../../edge/proxy/messages/messages.ts";
import { messagesReader } from "../../edge/proxy/messages/reader.ts";
import { readModel } from "../../edge/proxy/parse-request.ts";
import { chatReader } from "../../edge/proxy/provider/chat.ts";
import { completionsReader } from "../../edge/proxy/provider/completions.ts";
import { toolMessages } from "../../edge/proxy/provider/request.ts";
import { responsesReader } from "../../edge/proxy/provider/responses.ts";
import { readItemId } from "../../edge/proxy/responses/ids.ts";
import { responses } from "../../edge/proxy/responses/responses.ts";
import { eventReader } from "../../edge/proxy/sse.ts";
import { scoreOf } from "../../edge/record/evaluators/llm-judge.ts";
import { checkEvaluator, evaluate, isSlow } from "../../edge/record/evaluators/table.ts";
import { readOtlpBody } from "../../edge/record/otlp/body.ts";
import { evaluationOf, kindOf, responseIdOf, toolOf } from "../../edge/record/otlp/conventions.ts";
import * as json from "../../edge/record/otlp/json.ts";
import * as protobuf from "../../edge/record/otlp/protobuf.ts";
import { compilePattern } from "../../edge/record/pattern.ts";
import { redact } from "../../edge/record/redact.ts";
import { isSuccess } from "../../edge/record/success.ts";
import { recordedToolResults } from "../../edge/record/tool-results.ts";
import { parseBody } from "../../edge/routes/agl/parse.ts";
import { tripletEvents } from "../../edge/routes/agl/triplet.ts";
import * as agl from "../../edge/routes/agl/wire.ts";
import { checked, jsonBody, query } from "../../edge/routes/json-body.ts";
import { sessionHints } from "../../edge/session.ts";
import * as inference from "../../trainer/inference/requests.ts";
import { makeChatTemplate } from "../../trainer/model/chat-template.ts";
import { hermesToolCalls, parseCall } from "../../trainer/model/tool-call.ts";
import { anyText, anyValue, holds, spoiled, spoiledText, takenPart } from "./fuzzing.ts";
import { GOOD_BODIES, nameOf, routesOf } from "./routes.ts";

/** What anybody may send, and the parsers that it comes to; fuzz-coverage.test.ts says which file is tried where. */

const TOOL = { type: "function", function: { name: "memory", description: "d", parameters: { type: "object" } } };
const CALL = { id: "call_1", type: "function", function: { name: "memory", arguments: '{"traveller":"Ana"}' } };
const CHAT = {
  model: "any",
  messages: [
    { role: "system", content: "s" },
    { role: "user", content: [{ type: "text", text: "hi" }] },
    { role: "assistant", content: null, tool_calls: [CALL] },
    { role: "tool", tool_call_id: "call_1", content: "{}" },
  ],
  tools: [TOOL],
  tool_choice: "auto",
  temperature: 0.5,
  stream: true,
  stream_options: { include_usage: true },
  n: 1,
  stop: ["x"],
  logprobs: true,
  top_logprobs: 1,
  response_format: { type: "json_schema", json_schema: { name: "x", schema: {} } },
};
const RESPONSES = {
  model: "any",
  instructions: "be kind",
  input: [
    { role: "user", content: [{ type: "input_text", text: "hi" }] },
    { type: "reasoning", id: "rs_1", summary: [{ type: "summary_text", text: "s" }] },
    { type: "function_call", call_id: "c", name: "memory", arguments: "{}" },
    { type: "function_call_output", call_id: "c", output: "x" },
    { type: "item_reference", id: `msg_${"0a".repeat(16)}` },
  ],
  tools: [{ type: "function", name: "memory", parameters: {}, strict: true }],
  text: { format: { type: "json_schema", name: "x", schema: {} } },
  previous_response_id: "resp_1",
  reasoning: { effort: "low" },
  stream: true,
};
const MESSAGES = {
  model: "any",
  max_tokens: 10,
  system: [{ type: "text", text: "s", cache_control: { type: "ephemeral" } }],
  messages: [
    { role: "user", content: "hi" },
    { role: "assistant", content: [{ type: "tool_use", id: "t", name: "memory", input: {} }] },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "t", content: [{ type: "text", text: "x" }] }] },
  ],
  tools: [{ name: "memory", input_schema: { type: "object" } }],
  tool_choice: { type: "tool", name: "memory" },
  thinking: { type: "enabled", budget_tokens: 1024 },
  stop_sequences: ["x"],
  stream: true,
};
const COMPLETION = { model: "any", prompt: ["a"], max_tokens: 3, logprobs: 1, echo: false, stream: true, suffix: null };

describe("requests of agents", () => {
  test("for chat, and what inference is asked for them", async () => {
    const taken = await takenPart(spoiledText(CHAT), (body) => {
      const request = parseChatRequest(body);
      JSON.parse(inferenceBody(request, "flight@1", "train"));
    });
    expect(taken).toBeGreaterThan(0.4);
  });

  test.each([
    ["responses", responses as Dialect, RESPONSES],
    ["messages", messagesDialect, MESSAGES],
    ["completions", completionsDialect, COMPLETION],
  ])("for %s, and the answers to them", async (_name, dialect, good) => {
    const history = { role: "user", content: "earlier" };
    const answer: ChatMessage = { role: "assistant", content: "said before", reasoning_content: "why" };
    const taken = await takenPart(fc.tuple(spoiledText(good), anyText), async ([body, said]) => {
      const request = await dialect.parse(body, { history: async () => [history], answer: async () => answer });
      const head = { id: "ca_1", startedAt: 1, model: request.chat.model };
      const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
      const message = { content: said, reasoning: said, toolCalls: [] };
      JSON.stringify(request.whole({ ...head, message, finishReason: "stop", usage, logprobs: null }));
      const encoder = request.stream(head);
      expect(encoder.start() + encoder.text(said, null) + encoder.end({ finishReason: "stop", usage })).toContain(
        "data: ",
      );
    });
    expect(taken).toBeGreaterThan(0.3);
  });

  test("for embeddings, and any model's name", async () => {
    const taken = await takenPart(spoiledText({ model: "any", input: ["a", "b"] }), (body) => readModel(body));
    expect(taken).toBeGreaterThan(0.4);
  });

  test.each([
    ["chat", CHAT],
    ["responses", RESPONSES],
    ["messages", MESSAGES],
    ["completions", COMPLETION],
  ] as const)("of %s, seen as tool results and as hints of a session", async (dialect, good) => {
    const headers = new Headers();
    const taken = await takenPart(spoiled(good), (body) => {
      sessionHints(headers, body);
      recordedToolResults(dialect, body);
      if (typeof body === "object" && body !== null && !Array.isArray(body)) toolMessages(dialect, { ...body });
    });
    // They look at what was taken already, so nothing is refused here.
    expect(taken).toBe(1);
  });
});

describe("answers of models", () => {
  test("as server-sent events, however the bytes are cut", async () => {
    const line = fc.oneof(
      anyText.map((said) => `data: ${said}`),
      fc.constantFrom("data: [DONE]", "event: x", ": c", "id: 1", "retry: x", "", "\r", "data", "data:x"),
    );
    const stream = fc.array(line, { maxLength: 12 }).map((lines) => new TextEncoder().encode(lines.join("\n")));
    const bytes = fc.oneof(stream, fc.uint8Array({ maxLength: 300 }));
    const taken = await takenPart(fc.tuple(bytes, fc.nat(300)), ([all, at]) => {
      const read = eventReader();
      const whole = eventReader();
      expect([...read(all.subarray(0, at)), ...read(all.subarray(at))]).toEqual(whole(all));
    });
    expect(taken).toBe(1);
  });

  const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
  const ANSWERS = {
    chat: {
      id: "x",
      model: "m",
      choices: [{ index: 0, message: { role: "assistant", content: "a", tool_calls: [CALL] }, finish_reason: "stop" }],
      usage,
    },
    completions: { id: "x", model: "m", choices: [{ index: 0, text: "a", finish_reason: "stop" }], usage },
    responses: {
      id: "resp_1",
      model: "m",
      status: "completed",
      output: [
        { type: "reasoning", id: "rs_1", summary: [], content: [{ type: "reasoning_text", text: "x" }] },
        { type: "message", id: "msg_1", role: "assistant", content: [{ type: "output_text", text: "a" }] },
        { type: "function_call", id: "fc_1", call_id: "c", name: "f", arguments: "{}" },
      ],
      usage: { input_tokens: 1, output_tokens: 1 },
    },
    messages: {
      id: "msg_1",
      type: "message",
      model: "m",
      content: [
        { type: "text", text: "a" },
        { type: "tool_use", id: "t", name: "f", input: {} },
      ],
      stop_reason: "end_turn",
      usage: { input_tokens: 1, output_tokens: 1 },
    },
  };
  const STREAMED: Readonly<Record<keyof typeof ANSWERS, readonly unknown[]>> = {
    chat: [
      { choices: [{ index: 0, delta: { role: "assistant", content: "a" } }] },
      { choices: [{ index: 0, delta: { tool_calls: [{ index: 0, ...CALL }] } }] },
      { choices: [{ index: 0, delta: {}, finish_reason: "stop" }], usage },
    ],
    completions: [{ choices: [{ index: 0, text: "a" }] }, { choices: [{ index: 0, text: "", finish_reason: "stop" }] }],
    responses: [
      { type: "response.created", response: { id: "resp_1", output: [] } },
      { type: "response.output_item.added", output_index: 0, item: ANSWERS.responses.output[1] },
      { type: "response.output_text.delta", output_index: 0, content_index: 0, delta: "a" },
      { type: "response.completed", response: ANSWERS.responses },
    ],
    messages: [
      { type: "message_start", message: { ...ANSWERS.messages, content: [] } },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "a" } },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: "end_turn" }, usage: { output_tokens: 1 } },
      { type: "message_stop" },
    ],
  };
  const head = { id: `ca_${"0a".repeat(16)}`, startedAt: 1, model: "m" };
  const options = { promptCharacters: 4, includeUsage: true };
  const READERS = {
    chat: () => chatReader(head, options),
    completions: () => completionsReader(head, options),
    responses: () => responsesReader(head, options),
    messages: () => messagesReader(head, options),
  };

  test.each(["chat", "completions", "responses", "messages"] as const)("of a provider's %s", async (dialect) => {
    const whole = await takenPart(spoiled(ANSWERS[dialect]), (given) => {
      if (!isObject(given)) return;
      const reader = READERS[dialect]();
      JSON.stringify([reader.whole(given), reader.gathered]);
    });
    expect(whole).toBeGreaterThan(0.5);
    const streamed = await takenPart(spoiled(STREAMED[dialect]), (events) => {
      const reader = READERS[dialect]();
      const said = (Array.isArray(events) ? (events as readonly unknown[]) : [events]).map((given) =>
        reader.take(typeof given === "string" ? given : (JSON.stringify(given) ?? "")),
      );
      JSON.stringify([said.join("") + reader.ending(), reader.gathered]);
    });
    expect(streamed).toBeGreaterThan(0.3);
  });

  test("of an agent that is asked to run", async () => {
    const bodies = fc.oneof(
      spoiledText({ result: "x" }),
      spoiledText({ error: { message: "no", reason: "agent_failed" } }),
    );
    const taken = await takenPart(fc.tuple(bodies, fc.constantFrom(200, 400, 500)), async ([body, status]) => {
      const service = agentAt("https://example.com", async () => new Response(body, { status }));
      const run = { input: "x", token: "t", llmBaseUrl: "https://example.com/v1" };
      const answer = await askAgent(service, run, AbortSignal.timeout(1000));
      expect(["answered", "broken"]).toContain(answer.type);
    });
    expect(taken).toBe(1);
  });

  test("with tool calls, as a list or in the text", async () => {
    const listed = await takenPart(spoiled([CALL, { ...CALL, id: "call_2" }]), (calls) => {
      let next = 0;
      const whole = wholeToolCalls(calls, () => `new_${next++}`);
      expect(new Set(whole.map(({ id }) => id)).size).toBe(whole.length);
    });
    expect(listed).toBe(1);
    const said = fc.array(
      fc.oneof(
        anyText,
        fc.constantFrom("<tool_call>", "</tool_call>", "\n", '{"name": "x", "arguments": {"a": "'),
        spoiledText({ name: "a", arguments: { b: [1] } }),
      ),
      { maxLength: 12 },
    );
    const written = await takenPart(said, (pieces) => {
      const stream = hermesToolCalls.start();
      const parts = [...pieces.flatMap((piece) => stream.push(piece)), ...stream.end()];
      const once = hermesToolCalls.start();
      const together = [...once.push(pieces.join("")), ...once.end()];
      const flat = (given: typeof parts): string =>
        given.map((part) => (part.type === "content" ? part.text : JSON.stringify(part.call))).join("");
      expect(flat(parts)).toBe(flat(together));
    });
    expect(written).toBe(1);
    expect(await takenPart(spoiledText({ name: "a", arguments: { b: 1 } }), (given) => parseCall(given))).toBe(1);
    // Long and unclosed: quadratic readers show here.
    await holds(() => {
      const stream = hermesToolCalls.start();
      for (let at = 0; at < 2000; at++) stream.push('<tool_call>{"name": "x", "arguments": {{{{[[[["\\');
      return stream.end();
    });
  });
});

describe("telemetry", () => {
  const span = {
    traceId: "ab".repeat(16),
    spanId: "cd".repeat(8),
    name: "execute_tool x",
    startTimeUnixNano: "1795264719000000000",
    attributes: [{ key: "a", value: { arrayValue: { values: [{ intValue: "1" }, { kvlistValue: { values: [] } }] } } }],
    events: [{ name: "e", timeUnixNano: 1, attributes: [] }],
    status: { code: 2 },
  };

  test("in JSON", async () => {
    const traces = { resourceSpans: [{ resource: { attributes: [] }, scopeSpans: [{ spans: [span] }] }] };
    expect(
      await takenPart(spoiledText(traces), (body) =>
        json.readTraces(body).map((each) => [kindOf(each), toolOf(each), responseIdOf(each.attributes)]),
      ),
    ).toBeGreaterThan(0.3);
    const log = { eventName: "gen_ai.evaluation.result", timeUnixNano: "1", attributes: span.attributes };
    const logs = { resourceLogs: [{ scopeLogs: [{ logRecords: [{ ...log, traceId: span.traceId }] }] }] };
    expect(await takenPart(spoiledText(logs), (body) => json.readLogs(body).map(evaluationOf))).toBeGreaterThan(0.3);
  });

  test("in protobuf, groups within groups too", async () => {
    const bytes = fc.uint8Array({ maxLength: 300 });
    // Most bytes are no message; that nothing else comes of them is what is looked at.
    expect(await takenPart(bytes, protobuf.readTraces)).toBeLessThan(1);
    expect(await takenPart(bytes, protobuf.readLogs)).toBeLessThan(1);
    // A message in a message, thousands deep: field 1, length-delimited.
    let nested = new Uint8Array([0x0a, 0x00]);
    for (let depth = 0; depth < 2000; depth++) {
      const length = nested.length;
      const varint =
        length < 128
          ? [length]
          : length < 16_384
            ? [(length & 127) | 128, length >> 7]
            : [(length & 127) | 128, ((length >> 7) & 127) | 128, length >> 14];
      nested = new Uint8Array([0x0a, ...varint, ...nested]);
    }
    await holds(() => protobuf.readTraces(nested));
    expect(await holds(() => protobuf.readTraces(new Uint8Array(100_000).fill(0x0b)))).toBe(false);
  });

  test("in gzip that is none, or is cut", async () => {
    const whole = gzipSync(JSON.stringify({ resourceSpans: [] }));
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 100 }),
      fc.nat(whole.length).map((at) => new Uint8Array(whole.subarray(0, at))),
      fc.tuple(fc.nat(whole.length - 1), fc.nat(255)).map(([at, byte]) => new Uint8Array(whole).fill(byte, at, at + 1)),
    );
    const request = (body: Uint8Array<ArrayBuffer>): Request =>
      new Request("http://edge/", { method: "POST", body, headers: { "content-encoding": "gzip" } });
    expect(await takenPart(bytes, (body) => readOtlpBody(request(new Uint8Array(body))))).toBeLessThan(0.5);
    expect(await holds(() => readOtlpBody(request(new Uint8Array(whole))))).toBe(true);
  });
});

describe("names and credentials", () => {
  test("of versions and targets", async () => {
    const taken = await takenPart(fc.oneof(anyText, fc.stringMatching(/^[a-z]{1,5}@\d{1,4}$/)), (name) => {
      const parsed = parseVersionName(name);
      if (parsed !== undefined) expect(versionName(parsed.policy, parsed.version)).toBe(name);
      const served = parseServedName(name);
      if (served !== undefined) expect(servedName(served.tenantId, served.policy, served.version)).toBe(name);
      readItemId(name);
      if (modelTargetSchema.safeParse(name).success) parseModelTarget(name);
    });
    expect(taken).toBe(1);
    await holds(() => parseVersionName(`${"a".repeat(100_000)}@${"1".repeat(100_000)}`));
    await holds(() => parseServedName(`${"~0041".repeat(20_000)}~a@1`));
    await holds(() => modelTargetSchema.safeParse(`provider:${"a".repeat(100_000)}/`));
  });

  test("as tokens and keys, none of which is taken", async () => {
    const verify = tokenVerifier({ keys: [await newSigningKey()] });
    const part = fc.oneof(
      anyText,
      fc.json().map((given) => Buffer.from(given).toString("base64url")),
      spoiled({ alg: "EdDSA", typ: "JWT", kid: "x" }).map((given) =>
        Buffer.from(JSON.stringify(given) ?? "").toString("base64url"),
      ),
    );
    const token = fc.oneof(
      anyText,
      fc.array(part, { maxLength: 5 }).map((parts) => parts.join(".")),
    );
    expect(await takenPart(token, (given) => verify(given))).toBe(0);
    expect(
      await takenPart(fc.integer({ min: 1000, max: 200_000 }), (length) => verify(`${"a".repeat(length)}.b.c`), 20),
    ).toBe(0);
    await takenPart(token, (given) => expect(keyIdOf(given)).toBeUndefined());
  });

  test("of addresses", async () => {
    const url = fc.oneof(
      anyText,
      fc.webUrl({ withQueryParameters: true, withFragments: true }),
      fc.webUrl(),
      fc.ipV6().map((host) => `https://[${host}]/`),
    );
    const taken = await takenPart(url, (given) => {
      expect(new URL(outboundUrl(given, { what: "it", local: false })).protocol).toBe("https:");
    });
    expect(taken).toBeGreaterThan(0.05);
  });
});

/** Every schema that a module exports. */
function schemasOf(module: object): [string, z.ZodType][] {
  return Object.entries(module).filter((entry): entry is [string, z.ZodType] => entry[1] instanceof z.ZodType);
}

const BODY_SCHEMAS = ROUTES.flatMap((route): [string, z.ZodType][] =>
  route.body === undefined ? [] : [[nameOf(route), route.body]],
);
const QUERY_SCHEMAS = ROUTES.flatMap((route): [string, z.ZodType][] =>
  route.query === undefined ? [] : [[nameOf(route), route.query]],
);
/** Bodies of Agent Lightning's clients and of the inference endpoint, by their schema's name. */
const OTHER_BODIES: Readonly<Record<string, unknown>> = {
  newRolloutsSchema: GOOD_BODIES["POST /api/rollouts"],
  patchSchema: GOOD_BODIES["PATCH /api/rollouts/agl-1"],
  listQuerySchema: { state_in: ["queuing"], limit: "3" },
  endedQuerySchema: { after: "1", limit: "3" },
  statusIdsSchema: ["a", "b"],
  newEventSchema: GOOD_BODIES["POST /api/rollouts/agl-1/attempt/0/events"],
  eventsQuerySchema: { event_type: "x", format: "triplet" },
  modelsSchema: GOOD_BODIES["POST /api/models"],
  pauseSchema: { retry_after_seconds: 3, reason: "x" },
  chatRequestSchema: CHAT,
  completionRequestSchema: { model: "any", prompt: "a", max_tokens: 3, logprobs: 1 },
  loadRequestSchema: { lora_name: "a@1", lora_path: "/a" },
  unloadRequestSchema: { lora_name: "a@1" },
};

describe("the schemas of what is sent here", () => {
  const request = (body: string): Request => new Request("http://edge/", { method: "POST", body });

  test.each(BODY_SCHEMAS)("take or refuse the body of %s", async (name, schema) => {
    const [, good] = Object.entries(GOOD_BODIES).find(([call]) => routesOf([call]).has(name)) ?? [];
    expect(schema.safeParse(good).success).toBe(true);
    expect(await takenPart(spoiledText(good), (body) => jsonBody(request(body), schema), 60)).toBeGreaterThan(0.05);
  });

  test.each(QUERY_SCHEMAS)("take or refuse the query of %s", async (_name, schema) => {
    const pairs = fc.array(fc.tuple(fc.oneof(anyText, fc.constantFrom("limit", "after", "since")), anyText), {
      maxLength: 3,
    });
    const taken = await takenPart(
      pairs,
      (given) => query(`http://edge/?${new URLSearchParams(given).toString()}`, schema),
      60,
    );
    // The empty query is taken, at least.
    expect(taken).toBeGreaterThan(0);
  });

  test.each([...schemasOf(agl), ...schemasOf(inference)])("%s takes or refuses", async (name, schema) => {
    expect(Object.keys(OTHER_BODIES)).toContain(name);
    const good = OTHER_BODIES[name];
    expect(schema.safeParse(good).success).toBe(true);
    expect(await takenPart(spoiledText(good), (body) => parseBody(request(body), schema), 60)).toBeGreaterThan(0.05);
  });

  test("Agent Lightning's events become triplets whatever they hold", async () => {
    const data = {
      request: {},
      response: { choices: [{ token_ids: [1], logprobs: { content: [{ logprob: -1 }] } }] },
      prompt_token_ids: [1],
    };
    const view = { event_type: "model_request", rollout_id: "r", attempt_id: "0", timestamp: 1 };
    const bodies = fc.array(spoiledText({ event_type: "model_request", data }), { maxLength: 4 });
    const taken = await takenPart(bodies, async (all) => {
      const events = await Promise.all(all.map((body) => parseBody(request(body), agl.newEventSchema)));
      tripletEvents(events.map((event) => ({ ...view, data: event.data })));
    });
    expect(taken).toBeGreaterThan(0.2);
  });

  test("whatever is thrown becomes an answer", async () => {
    const thrown = fc.oneof(
      anyText,
      fc.constantFrom(undefined, null, 1, {}),
      anyText.map((said) => new Error(said)),
      anyText.map((said) => new RangeError(`Maximum call stack size exceeded${said}`)),
      anyText.map((code) => Object.assign(new Error("x"), { code })),
    );
    const taken = await takenPart(thrown, (given) => {
      expect(statusOf(given)).toBeGreaterThanOrEqual(400);
      const { error } = errorBody(given);
      expect(Object.keys(error)).toEqual(["message", "type", "param", "code"]);
    });
    expect(taken).toBe(1);
  });
});

describe("what tenants write", () => {
  test("patterns are matched in linear time, or refused", async () => {
    const pattern = fc.oneof(
      anyText,
      fc.constantFrom("(a+)+$", "(a|a)*$", "(.*)(.*)(.*)(.*)x", "a{1,1000}{1,1000}", "(?<=a)b", "(a)\\1", "[", "(?i)a"),
      fc
        .array(fc.constantFrom("a", "(", ")", "*", "+", "?", "|", "[", "]", "{2,}", "^", "$", "\\w"), { maxLength: 12 })
        .map((parts) => parts.join("")),
    );
    const long = `${"a".repeat(5000)}!`;
    const taken = await takenPart(fc.tuple(pattern, anyText), ([source, subject]) => {
      const compiled = compilePattern(source);
      compiled.search(subject);
      compiled.search(long);
      compiled.matchesWhole(long);
      expect(compiled.replaceAll(subject, "")).toBeTypeOf("string");
    });
    expect(taken).toBeGreaterThan(0.2);
  });

  test("redaction leaves nothing that it was told to hide", async () => {
    const rules = [
      { path: "$.user.email", replacement: "[gone]" },
      { path: "$.messages.*.content", replacement: "[gone]" },
      { pattern: "s3cret", replacement: "[gone]" },
    ];
    const body = {
      user: { email: "s3cret-a" },
      messages: [{ role: "user", content: "s3cret-b" }],
      more: ["x s3cret y"],
    };
    const taken = await takenPart(spoiledText(body), (given) => {
      expect(redact(given, rules).text).not.toContain("s3cret");
    });
    expect(taken).toBe(1);
  });

  test("a redaction's path leads somewhere or is refused", async () => {
    const path = fc.oneof(
      anyText.map((said) => `$.${said}`),
      fc
        .array(fc.constantFrom(".a", "[0]", ".*", '["b"]', "[", "]", "."), { maxLength: 6 })
        .map((all) => `$${all.join("")}`),
    );
    const taken = await takenPart(fc.tuple(path, anyValue), ([given, value]) => {
      redact(JSON.stringify(value) ?? "", [{ path: given, replacement: "x" }]);
    });
    expect(taken).toBeGreaterThan(0.2);
  });

  test("rules of success say yes, no or nothing of any result", async () => {
    const rules = { json_error_fields: ["error"], error_prefixes: ["no"], http_error_from: 400, empty_is_error: true };
    const results = fc.oneof(anyText, spoiledText({ error: null, status: 200, data: [] }));
    const taken = await takenPart(results, (given) => {
      expect([true, false, undefined]).toContain(isSuccess(given, rules));
      expect([true, false]).toContain(isSuccess(given));
    });
    expect(taken).toBe(1);
  });

  test.each([
    ["exact_match", { type: "exact_match" }],
    ["token_f1", { type: "token_f1" }],
    ["numeric", { type: "numeric" }],
    ["json_schema", { type: "json_schema", schema: { type: "object", properties: { a: { format: "date" } } } }],
  ])("evaluator %s judges any text, or says why not", async (_name, good) => {
    const results = fc.oneof(anyText, spoiledText({ a: "2026-01-01" }), fc.constant("12 1/2"));
    const taken = await takenPart(fc.tuple(spoiled(good), results, anyValue), ([given, result, expected]) => {
      const evaluator = checked(evaluatorSchema, given, "the evaluator");
      checkEvaluator(evaluator);
      if (isSlow(evaluator)) return;
      const wanted = checked(z.json(), expected, "what is expected");
      const { correctness, format } = evaluate(evaluator, { result, expected: wanted });
      for (const part of [correctness, format]) expect(part >= 0 && part <= 1).toBe(true);
    });
    expect(taken).toBeGreaterThan(0.05);
  });

  test("a judge's words become a score or none", async () => {
    const said = fc.oneof(anyText, fc.double().map(String), fc.constantFrom("Score: 7", "0.5/1", "-1", "1e999"));
    const taken = await takenPart(said, (given) => {
      const score = scoreOf(given);
      if (score !== undefined) expect(Number.isFinite(score)).toBe(true);
    });
    expect(taken).toBe(1);
  });
});

describe("arguments of a chat template", () => {
  test("are text to the template, and a template that refuses them is an error that can be answered", async () => {
    const source = await readFile(join(import.meta.dirname, "../../models/flight/tokenizer_config.json"), "utf8")
      .then((config) => (JSON.parse(config) as { chat_template: string }).chat_template)
      .catch(() => readFile(join(import.meta.dirname, "../../models/flight/chat_template.jinja"), "utf8"));
    const template = makeChatTemplate(source, { bos_token: "<s>", eos_token: "</s>" });
    const taken = await takenPart(spoiledText(CHAT), (body) => {
      const request = inference.parseRequest(inference.chatRequestSchema, safely(body));
      template.render({ messages: inference.messagesOf(request), tools: request.tools ?? [] }, "answer");
    });
    expect(taken).toBeGreaterThan(0.3);
    await takenPart(fc.tuple(anyText, fc.dictionary(anyText, anyValue, { maxKeys: 3 })), ([content, variables]) => {
      const rendered = template.render({ messages: [{ role: "user", content }], tools: [], variables }, "answer");
      // Not a template itself: what is between braces stays there.
      if (content.includes("{{ 1 / 0 }}") && !("messages" in variables)) expect(rendered).toContain("{{ 1 / 0 }}");
    });
  });
});

function safely(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch (cause) {
    throw new FulgurError("ERR_INVALID_REQUEST", "the body is not JSON", { cause });
  }
}
