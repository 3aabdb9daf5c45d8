import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { agentSettingsSchema, modelTargetSchema, parseModelTarget } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import { keyIdOf } from "#shared/keys.ts";
import { newSigningKey, tokenVerifier } from "#shared/tokens.ts";
import * as access from "#shared/wire-access.ts";
import * as feedback from "#shared/wire-feedback.ts";
import * as metering from "#shared/wire-metering.ts";
import * as tenant from "#shared/wire-tenant.ts";
import * as wire from "#shared/wire.ts";
import { parseVersionName, versionName } from "#shared/words.ts";
import { errorBody, statusOf } from "../../edge/http-errors.ts";
import { outboundUrl } from "../../edge/outbound-url.ts";
import { wholeToolCalls } from "../../edge/proxy/capture.ts";
import { inferenceBody, parseChatRequest } from "../../edge/proxy/chat/request.ts";
import { completionsDialect } from "../../edge/proxy/completions/completions.ts";
import type { ChatMessage, Dialect } from "../../edge/proxy/dialect.ts";
import { messagesDialect } from "../../edge/proxy/messages/messages.ts";
import { readItemId } from "../../edge/proxy/responses/ids.ts";
import { responses } from "../../edge/proxy/responses/responses.ts";
import { eventReader } from "../../edge/proxy/sse.ts";
import { toolMessages } from "../../edge/proxy/provider/request.ts";
import * as json from "../../edge/record/otlp/json.ts";
import * as protobuf from "../../edge/record/otlp/protobuf.ts";
import { recordedToolResults } from "../../edge/record/tool-results.ts";
import * as agl from "../../edge/routes/agl/wire.ts";
import { tripletEvents } from "../../edge/routes/agl/triplet.ts";
import { jsonBody, query } from "../../edge/routes/json-body.ts";
import { sessionHints } from "../../edge/session.ts";
import * as inference from "../../trainer/inference/requests.ts";
import { makeChatTemplate } from "../../trainer/model/chat-template.ts";
import { hermesToolCalls, parseCall } from "../../trainer/model/tool-call.ts";

/**
 * Every parser takes what anybody may send: it answers with a value or a FulgurError, soon, and changes nothing. The seed
 * of a failure is printed with it.
 */

/** The longest that one input may take; generous, since a parser that backtracks takes minutes. */
const MAX_MS = 500;

/** Texts and names that have broken parsers. */
const NASTY = [
  "__proto__",
  "constructor",
  "prototype",
  "toString",
  "then",
  "\u0000",
  "\ud800",
  "\u{FEFF}",
  "\u2028",
  "a".repeat(300),
  "<tool_call>",
  "</tool_call>",
  "data: [DONE]\n\n",
  "{{ 1 / 0 }}",
  "{% for x in x %}",
  "${x}",
  "../../x",
  "flight@1",
  "provider:a/b",
  "NaN",
  "1e999",
];

const text = fc.oneof(fc.constantFrom(...NASTY), fc.string({ unit: "binary", maxLength: 40 }), fc.string());
const value = fc.letrec<{ any: unknown }>((tie) => ({
  any: fc.oneof(
    { depthSize: "small" },
    text,
    fc.double(),
    fc.integer(),
    fc.constantFrom(null, true, false, 1e308, -0, 2 ** 53),
    fc.array(tie("any"), { maxLength: 4 }),
    fc.dictionary(text, tie("any"), { maxKeys: 4 }),
  ),
})).any;

/** Whether a call gives a value or a FulgurError, in time, and leaves every object's prototype alone. */
async function holds(run: () => unknown): Promise<void> {
  const started = performance.now();
  try {
    await run();
  } catch (thrown) {
    if (!(thrown instanceof FulgurError)) throw thrown;
    expect(thrown.message.length).toBeGreaterThan(5);
  }
  expect(performance.now() - started).toBeLessThan(MAX_MS);
  expect(Object.keys(Object.prototype)).toEqual([]);
}

function always<T>(input: fc.Arbitrary<T>, run: (value: T) => unknown, numRuns = 200): Promise<void> {
  return fc.assert(
    fc.asyncProperty(input, (given) => holds(() => run(given))),
    { numRuns },
  );
}

/**
 * A good value with some of its parts replaced by others, left out or repeated: what gets past the first check that random
 * values fail at.
 */
function spoiled(good: unknown): fc.Arbitrary<unknown> {
  if (Array.isArray(good)) {
    const items: readonly unknown[] = good;
    return fc.oneof(
      { weight: 6, arbitrary: items.length === 0 ? fc.constant([]) : fc.tuple(...items.map(spoiled)) },
      {
        weight: 1,
        arbitrary: fc.array(items.length === 0 ? value : fc.oneof(...items.map(spoiled)), { maxLength: 5 }),
      },
      { weight: 1, arbitrary: value },
    );
  }
  if (typeof good !== "object" || good === null) {
    return fc.oneof({ weight: 6, arbitrary: fc.constant(good) }, { weight: 1, arbitrary: value });
  }
  const fields = Object.fromEntries(
    Object.entries(good).map(([name, field]) => [name, fc.option(spoiled(field), { nil: undefined, freq: 12 })]),
  );
  return fc.oneof(
    {
      weight: 8,
      arbitrary: fc
        .tuple(fc.record(fields), fc.dictionary(text, value, { maxKeys: 1 }))
        .map(([given, more]) => ({ ...more, ...given })),
    },
    { weight: 1, arbitrary: value },
  );
}

const asText = (good: unknown): fc.Arbitrary<string> =>
  fc.oneof(
    { weight: 8, arbitrary: spoiled(good).map((given) => JSON.stringify(given) ?? "") },
    { weight: 1, arbitrary: fc.string() },
    // Cut somewhere.
    { weight: 1, arbitrary: fc.nat(200).map((at) => JSON.stringify(good).slice(0, at)) },
  );

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
    { type: "item_reference", id: "msg_1" },
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
    let taken = 0;
    await always(asText(CHAT), (body) => {
      const request = parseChatRequest(body);
      taken++;
      JSON.parse(inferenceBody(request, { policy: "flight", version: 1 }, "train"));
    });
    // Else all that was tried was the first check.
    expect(taken).toBeGreaterThan(20);
  });

  test.each([
    ["responses", responses as Dialect, RESPONSES],
    ["messages", messagesDialect, MESSAGES],
    ["completions", completionsDialect, COMPLETION],
  ])("for %s, and the answers to them", async (_name, dialect, good) => {
    let taken = 0;
    const message: ChatMessage = { role: "user", content: "earlier" };
    await always(fc.tuple(asText(good), text), async ([body, said]) => {
      const request = await dialect.parse(body, { history: async () => [message], answer: async () => message });
      taken++;
      const head = { id: "ca_1", startedAt: 1, model: request.chat.model };
      const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
      const answer = { content: said, reasoning: said, toolCalls: [] };
      JSON.stringify(request.whole({ ...head, message: answer, finishReason: "stop", usage, logprobs: null }));
      const encoder = request.stream(head);
      expect(encoder.start() + encoder.text(said, null) + encoder.end({ finishReason: "stop", usage })).toContain(
        "data: ",
      );
    });
    expect(taken).toBeGreaterThan(10);
  });

  test("seen as tool results and as hints of a session", async () => {
    const headers = new Headers();
    for (const [dialect, good] of [
      ["chat", CHAT],
      ["responses", RESPONSES],
      ["messages", MESSAGES],
      ["completions", COMPLETION],
    ] as const) {
      await always(
        spoiled(good),
        (body) => {
          sessionHints(headers, body);
          if (typeof body !== "object" || body === null || Array.isArray(body)) return;
          toolMessages(dialect, { ...body });
          recordedToolResults(dialect, { ...body } as never);
        },
        150,
      );
    }
  });
});

describe("answers of models", () => {
  test("as server-sent events, however the bytes are cut", async () => {
    const line = fc.oneof(
      text.map((said) => `data: ${said}`),
      fc.constantFrom("data: [DONE]", "event: x", ": c", "id: 1", "retry: x", "", "\r", "data", "data:x"),
    );
    const stream = fc.array(line, { maxLength: 12 }).map((lines) => new TextEncoder().encode(lines.join("\n")));
    await always(fc.tuple(fc.oneof(stream, fc.uint8Array({ maxLength: 300 })), fc.nat(300)), ([bytes, at]) => {
      const read = eventReader();
      const whole = eventReader();
      const cut = [...read(bytes.subarray(0, at)), ...read(bytes.subarray(at))];
      expect(cut).toEqual(whole(bytes));
    });
  });

  test("with tool calls, as a list or in the text", async () => {
    await always(spoiled([CALL, { ...CALL, id: "call_2" }]), (calls) => {
      let next = 0;
      const whole = wholeToolCalls(calls, () => `new_${next++}`);
      expect(new Set(whole.map(({ id }) => id)).size).toBe(whole.length);
    });
    const said = fc.array(
      fc.oneof(
        text,
        fc.constantFrom("<tool_call>", "</tool_call>", "\n", '{"name": "x", "arguments": {"a": "'),
        asText({ name: "a", arguments: { b: [1] } }),
      ),
      { maxLength: 12 },
    );
    await always(said, (pieces) => {
      const stream = hermesToolCalls.start();
      const parts = [...pieces.flatMap((piece) => stream.push(piece)), ...stream.end()];
      const once = hermesToolCalls.start();
      const together = [...once.push(pieces.join("")), ...once.end()];
      const flat = (given: typeof parts): string =>
        given.map((part) => (part.type === "content" ? part.text : JSON.stringify(part.call))).join("");
      expect(flat(parts)).toBe(flat(together));
    });
    await always(asText({ name: "a", arguments: { b: 1 } }), (given) => parseCall(given));
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
    await always(
      asText({ resourceSpans: [{ resource: { attributes: [] }, scopeSpans: [{ spans: [span] }] }] }),
      json.readTraces,
    );
    const log = { eventName: "x", timeUnixNano: "1", attributes: span.attributes, traceId: span.traceId };
    await always(asText({ resourceLogs: [{ scopeLogs: [{ logRecords: [log] }] }] }), json.readLogs);
  });

  test("in protobuf, groups within groups too", async () => {
    await always(fc.uint8Array({ maxLength: 300 }), protobuf.readTraces);
    await always(fc.uint8Array({ maxLength: 300 }), protobuf.readLogs);
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
    await holds(() => protobuf.readTraces(new Uint8Array(100_000).fill(0x0b)));
  });
});

describe("names and credentials", () => {
  test("of versions and targets", async () => {
    await always(text, (name) => {
      const parsed = parseVersionName(name);
      if (parsed !== undefined) expect(versionName(parsed.policy, parsed.version)).toBe(name);
      readItemId(name);
      if (modelTargetSchema.safeParse(name).success) parseModelTarget(name);
    });
    await holds(() => parseVersionName(`${"a".repeat(100_000)}@${"1".repeat(100_000)}`));
    await holds(() => modelTargetSchema.safeParse(`provider:${"a".repeat(100_000)}/`));
  });

  test("as tokens and keys, none of which is taken", async () => {
    const verify = tokenVerifier({ keys: [await newSigningKey()] });
    const part = fc.oneof(
      text,
      fc.json().map((given) => Buffer.from(given).toString("base64url")),
      spoiled({ alg: "EdDSA", typ: "JWT", kid: "x" }).map((given) =>
        Buffer.from(JSON.stringify(given) ?? "").toString("base64url"),
      ),
    );
    const token = fc.oneof(
      text,
      fc.array(part, { maxLength: 5 }).map((parts) => parts.join(".")),
    );
    await always(token, async (given) => {
      const taken = await verify(given).catch((thrown: unknown) => {
        expect(thrown).toMatchObject({ code: "ERR_AUTH" });
        return undefined;
      });
      expect(taken).toBeUndefined();
      expect(keyIdOf(given)).toBeUndefined();
    });
    await always(
      fc.integer({ min: 1000, max: 200_000 }),
      (length) => verify(`${"a".repeat(length)}.b.c`).catch(() => undefined),
      20,
    );
  });

  test("of addresses", async () => {
    const url = fc.oneof(
      text,
      fc.webUrl({ withQueryParameters: true, withFragments: true }),
      fc.ipV6().map((host) => `https://[${host}]/`),
    );
    await always(url, (given) => {
      const taken = outboundUrl(given, { what: "it", local: false });
      expect(new URL(taken).protocol).toBe("https:");
    });
  });
});

/** Every schema that a module exports. */
function schemasOf(module: object): [string, z.ZodType][] {
  return Object.entries(module).filter((entry): entry is [string, z.ZodType] => entry[1] instanceof z.ZodType);
}

const SCHEMAS = [
  ...[wire, access, feedback, metering, tenant, agl].flatMap(schemasOf),
  ...schemasOf(inference),
  ["agentSettingsSchema", agentSettingsSchema] as const,
];

/** Bodies that the schemas take, so that some get further. */
const BODIES = [
  {
    tasks: [
      {
        id: "t",
        agent: "flight",
        split: "train",
        input: {},
        judge: { answer_pattern: "(a+)+$", format_pattern: "x", expected: "y" },
      },
    ],
  },
  { rollouts: [{ id: "r", task_id: "t", agent: "flight", mode: "train", pin: "flight@1" }] },
  { agent: "flight", mode: "live", caps: { max_calls: 1 }, ttl_seconds: 5 },
  {
    policy: "flight",
    tools: { a: { weight: 0.5, success: { error_prefixes: ["x"] } } },
    models: { "*": "policy:x" },
    live: { redact: [{ path: "$.a.b" }] },
  },
  { rollout_id: "r", call_id: "c", value: 1, name: "n", settings: { alpha: 0.5 } },
  { points: [{ step: 1, name: "x", value: 1 }], metrics: { a: 1 } },
  { base_url: "https://example.com", key_env: "A", otlp_export: { url: "https://example.com" } },
  [{ rollout_id: "r", input: {}, config: { local: { env_map: { a: "b" } } }, metadata: { batch_idx: "3" } }],
  CHAT,
];

describe("the edge's own schemas", () => {
  test("are all looked at", () => {
    expect(SCHEMAS.length).toBeGreaterThan(50);
  });

  test.each(SCHEMAS)("%s takes or refuses", async (_name, schema) => {
    const request = (body: string): Request => new Request("http://edge/", { method: "POST", body });
    const body = fc.oneof(
      ...BODIES.map(asText),
      value.map((given) => JSON.stringify(given) ?? ""),
    );
    await always(body, (given) => jsonBody(request(given), schema), 60);
    await always(
      fc.array(fc.tuple(text, text), { maxLength: 4 }),
      (pairs) => query(`http://edge/?${new URLSearchParams(pairs).toString()}`, schema),
      20,
    );
  });

  test("Agent Lightning's events become triplets whatever they hold", async () => {
    const data = {
      request: {},
      response: { choices: [{ token_ids: [1], logprobs: { content: [{ logprob: -1 }] } }] },
      prompt_token_ids: [1],
    };
    const view = { event_type: "model_request", rollout_id: "r", attempt_id: "0", timestamp: 1 };
    await always(fc.array(spoiled(data), { maxLength: 4 }), (all) =>
      tripletEvents(all.map((given) => ({ ...view, data: Object.assign(Object.create(null), given) as never }))),
    );
  });

  test("whatever is thrown becomes an answer", async () => {
    const thrown = fc.oneof(
      text,
      fc.constantFrom(undefined, null, 1, {}),
      text.map((said) => new Error(said)),
      text.map((said) => new RangeError(`Maximum call stack size exceeded${said}`)),
      text.map((code) => Object.assign(new Error("x"), { code })),
    );
    await always(thrown, (given) => {
      expect(statusOf(given)).toBeGreaterThanOrEqual(400);
      const { error } = errorBody(given);
      expect(Object.keys(error)).toEqual(["message", "type", "param", "code"]);
    });
  });
});

describe("arguments of a chat template", () => {
  test("are text to the template, and a template that refuses them is an error that can be answered", async () => {
    const source = await readFile(join(import.meta.dirname, "../../models/flight/tokenizer_config.json"), "utf8")
      .then((config) => (JSON.parse(config) as { chat_template: string }).chat_template)
      .catch(() => readFile(join(import.meta.dirname, "../../models/flight/chat_template.jinja"), "utf8"));
    const template = makeChatTemplate(source, { bos_token: "<s>", eos_token: "</s>" });
    await always(asText(CHAT), (body) => {
      const request = inference.parseRequest(inference.chatRequestSchema, safely(body));
      template.render({ messages: inference.messagesOf(request), tools: request.tools ?? [] }, "answer");
    });
    await always(fc.tuple(text, fc.dictionary(text, value, { maxKeys: 3 })), ([content, variables]) => {
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
