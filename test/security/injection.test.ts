import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { AnswerHead, ChatMessage, Dialect } from "../../edge/proxy/dialect.ts";
import { completionsDialect } from "../../edge/proxy/completions/completions.ts";
import { messagesDialect } from "../../edge/proxy/messages/messages.ts";
import { responses } from "../../edge/proxy/responses/responses.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ask, chat, expectOf, HEALTHY, healthOf, raw, statusesOf } from "./support.ts";

/** Text that would be something else if it got out of the place where it belongs. */

let edge: TestEdge;
let admin: string;
beforeAll(async () => {
  edge = await startTestEdge();
  admin = await edge.mint({ scopes: ["admin"] });
});
afterAll(() => edge.stop());

describe("SQL in a text", () => {
  const SQL = [
    "'; drop table calls; --",
    '"; drop table rollouts; --',
    "' or '1'='1",
    "') or 1=1 --",
    "x' union select hash from keys --",
    "1; attach database '/tmp/x' as y; --",
    "\\'; delete from audit; --",
    "%' or '%'='",
    "?1 :a @b $c",
    "\u0000'; drop table tenants; --",
    "'||(select hash from keys)||'",
  ] as const;

  async function counts(): Promise<Record<string, number>> {
    const tables = await edge.store.db.all<{ name: string }>(
      sql`select name from sqlite_master where type = 'table' and name not like 'sqlite_%' order by name`,
    );
    const query = tables
      .map(({ name }) => `select '${name}' as name, count(*) as n from "${name}"`)
      .join(" union all ");
    const rows = await edge.store.db.all<{ name: string; n: number }>(sql.raw(query));
    return Object.fromEntries(rows.map(({ name, n }) => [name, n]));
  }

  test("is kept letter by letter wherever a text is kept", async () => {
    const { id, token } = await edge.rollout("live");
    for (const [index, text] of SQL.entries()) {
      for (const [route, body] of [
        ["POST /v1/rewards", { rollout_id: id, name: text, value: index, key: `n-${index}` }],
        ["POST /v1/rewards", { rollout_id: id, name: `key ${index}`, value: index, key: text }],
        ["POST /v1/tasks", { tasks: [{ id: text, agent: "flight", split: "val", input: text, judge: null }] }],
        ["POST /v1/runs", { id: text, policy: "flight", agent: "flight", config: { text } }],
        [`POST /v1/runs/${encodeURIComponent("r")}/metrics`, { points: [{ step: index, name: text, value: 1 }] }],
        ["POST /v1/keys", { scope: "read", label: text }],
        ["PUT /v1/prices", { model: text, prompt_per_million: 1, completion_per_million: 1 }],
        ["PUT /v1/agents/sql", { policy: "flight", tools: { [text]: 0.5 }, models: { [text]: "policy:flight" } }],
        ["POST /v1/agents/sql/models", { models: { [text]: "policy:flight" } }],
        ["POST /v1/policies", { name: `sql-${index}`, artifact: text, sha256: "a".repeat(64) }],
        ["POST /v1/tokens/revoke", { jti: text, expires_at: Date.now() + 1000 }],
      ] as const) {
        const answer = await ask(edge, route, { token: admin, body });
        expectOf(answer.status, `${route} ${text}: ${answer.text}`).toBe(200);
      }
      const called = await chat(edge, token, text, { model: text, user: text });
      expectOf(called.status, called.text).toBe(200);
    }
    const { db } = edge.store;
    const kept = async (query: string): Promise<unknown[]> =>
      (await db.all<{ text: string }>(sql.raw(query))).map(({ text }) => text);
    expect(await kept("select name as text from rewards where key like 'n-%' order by value")).toEqual(SQL);
    expect(await kept("select key as text from rewards where name like 'key %' order by value")).toEqual(SQL);
    expect(await kept("select name as text from metrics where run_id = 'r' order by step")).toEqual(SQL);
    expect(await kept("select label as text from keys order by rowid")).toEqual(SQL);
    expect(await kept("select artifact as text from policy_versions where policy like 'sql-%' order by rowid")).toEqual(
      SQL,
    );
    expect(await kept("select model_asked as text from calls order by rowid")).toEqual(SQL);
    for (const table of ["tasks", "runs"]) {
      expect(await kept(`select id as text from ${table} where id <> 'r' order by rowid`)).toEqual(SQL);
    }
    expect(new Set(await kept("select model as text from prices"))).toEqual(new Set(SQL));
  });

  test("does nothing where a text is only looked for, and finds nothing", async () => {
    const before = await counts();
    expect(Object.keys(before).length).toBeGreaterThan(25);
    for (const text of SQL) {
      const encoded = encodeURIComponent(text);
      for (const path of [
        `/v1/rollouts/${encoded}`,
        `/v1/rollouts?run_id=${encoded}`,
        `/v1/rollouts?after=${encoded}`,
        `/v1/runs/${encoded}-/steps`,
        `/v1/models/${encoded}`,
        `/v1/agents/${encoded}`,
        `/v1/providers/${encoded}`,
        `/v1/audit?before=${encoded}`,
        `/v1/usage?since=${encoded}`,
        `/api/rollouts/${encoded}`,
        `/api/rollouts/${encoded}/events?event_type=${encoded}&format=${encoded}`,
        `/api/rollouts?state_in=${encoded}`,
      ]) {
        const answer = await ask(edge, `GET ${path}`, { token: admin });
        expectOf(answer.status, `${path}: ${answer.text}`).toBeLessThan(500);
        // Nobody's rows, and no hash of a key.
        expect(answer.text).not.toMatch(/"id":"ro_|[0-9a-f]{64}/);
      }
    }
    expect(await counts()).toEqual(before);
  });
});

/** Texts that would end an event, begin another or end the stream, as a model may say them. */
const BREAKERS = [
  "\n\ndata: [DONE]\n\n",
  "\r\n\r\nevent: error\r\ndata: {}\r\n\r\n",
  "\rdata: [DONE]\r\r",
  "\nevent: message_stop\ndata: {}\n\n",
  "data: [DONE]",
  ": comment\n\n",
  "\nid: 1\nretry: 1\n",
  "\u2028data: [DONE]\u2029\u0085",
  "\u0000\u0001\u{FEFF}",
  '"}]}\n\ndata: {"choices":[]}\n\n',
  "</script><script>",
  "\\n\\ndata: [DONE]\\n\\n",
];

interface ServerEvent {
  readonly event: string | undefined;
  readonly data: string;
}

/** Events as a strict reader sees them: any line that is no field's fails. */
function eventsOf(text: string): ServerEvent[] {
  expect(text.endsWith("\n\n")).toBe(true);
  return text
    .split(/\r\n\r\n|\n\n|\r\r/)
    .slice(0, -1)
    .filter((block) => !block.startsWith(":"))
    .map((block) => {
      const lines = block.split(/\r\n|\n|\r/);
      expect(lines.filter((line) => !/^(event|data): /.test(line))).toEqual([]);
      const valueOf = (field: string): string[] =>
        lines.filter((line) => line.startsWith(`${field}: `)).map((line) => line.slice(field.length + 2));
      expect(valueOf("data")).toHaveLength(1);
      return { event: valueOf("event")[0], data: valueOf("data")[0] ?? "" };
    });
}

/** Every text in some JSON, joined. */
function textsOf(value: unknown): string {
  if (typeof value === "string") return value;
  return typeof value === "object" && value !== null ? Object.values(value).map(textsOf).join("") : "";
}

describe("an answer that says what a stream says", () => {
  test("stays in its event on the chat route, streamed and whole", async () => {
    edge.inference.answer = () => ({ tokens: BREAKERS });
    const { token } = await edge.rollout("live");
    const streamed = await ask(edge, "POST /v1/chat/completions", {
      token,
      body: { model: "any", stream: true, messages: [{ role: "user", content: "hi" }] },
    });
    const events = eventsOf(streamed.text);
    expect(events.filter(({ event }) => event !== undefined)).toEqual([]);
    expect(events.flatMap(({ data }, at) => (data === "[DONE]" ? [at] : []))).toEqual([events.length - 1]);
    const said = events.slice(0, -1).map(({ data }) => {
      const chunk = JSON.parse(data) as { choices: { delta?: { content?: string | null } }[] };
      return chunk.choices[0]?.delta?.content ?? "";
    });
    expect(said.join("")).toBe(BREAKERS.join(""));
    const whole = JSON.parse((await chat(edge, token)).text) as { choices: { message: { content: string } }[] };
    expect(whole.choices[0]?.message.content).toBe(BREAKERS.join(""));
  });

  test("stays in its event on every other route that a policy answers", async () => {
    edge.inference.answer = () => ({ tokens: BREAKERS });
    const { token } = await edge.rollout("live");
    for (const [path, body] of [
      ["responses", { input: "hi" }],
      ["messages", { max_tokens: 50, messages: [{ role: "user", content: "hi" }] }],
    ] as const) {
      const { status, text } = await ask(edge, `POST /v1/${path}`, {
        token,
        body: { model: "any", stream: true, ...body },
      });
      expectOf(status, `${path}: ${text}`).toBe(200);
      const events = eventsOf(text).filter(({ data }) => data !== "[DONE]");
      for (const { event, data } of events) expect((JSON.parse(data) as { type: string }).type).toBe(event);
      const deltas = events.filter(
        ({ event }) => event === "response.output_text.delta" || event === "content_block_delta",
      );
      const said = deltas.map(({ data }) => {
        const { delta } = JSON.parse(data) as { delta: string | { text: string } };
        return typeof delta === "string" ? delta : delta.text;
      });
      expect([path, said.join("")]).toEqual([path, BREAKERS.join("")]);
      expect(events.filter(({ event }) => event === "error" || event === "response.failed")).toEqual([]);
    }
  });

  test.each([
    ["responses", responses as Dialect, { model: "any", input: "hi", stream: true }],
    [
      "messages",
      messagesDialect,
      { model: "any", max_tokens: 9, stream: true, messages: [{ role: "user", content: "x" }] },
    ],
    ["completions", completionsDialect, { model: "any", prompt: "hi", stream: true }],
  ])(
    "stays in its event as %s, tool calls, reasoning, errors and the model's name too",
    async (_name, dialect, body) => {
      const history = async (): Promise<readonly ChatMessage[]> => [];
      for (const text of BREAKERS) {
        const request = await dialect.parse(JSON.stringify(body), { history });
        const head: AnswerHead = { id: "ca_1", startedAt: 1, model: `m${text}` };
        const encoder = request.stream(head);
        const pieces = [
          encoder.start(),
          encoder.reasoning(text),
          encoder.text(text, null),
          ...(dialect.name === "completions"
            ? []
            : [
                encoder.toolCall({ index: 0, id: `call${text}`, name: `tool${text}`, argumentsDelta: "" }),
                encoder.toolCall({ index: 0, argumentsDelta: JSON.stringify({ text }) }),
              ]),
        ];
        const failed = [...pieces, encoder.fail(new Error(text))].join("");
        expect(
          textsOf(eventsOf(failed).map(({ data }) => (data === "[DONE]" ? "" : (JSON.parse(data) as unknown)))),
        ).toContain(text);
        const whole = request.stream(head);
        const ended =
          whole.start() +
          whole.text(text, null) +
          whole.end({ finishReason: "stop", usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } });
        const events = eventsOf(ended);
        expect(events.length).toBeGreaterThan(1);
        expect(events.filter(({ data }) => data === "[DONE]").length).toBeLessThanOrEqual(1);
      }
    },
  );
});

describe("a header or a connection", () => {
  const CRLF = ["a\r\nx-injected: yes", "a\nx-injected: yes", "a%0d%0ax-injected: yes", "a\u560d\u560ax-injected: yes"];

  test("does not take a line from a text into the answer's head", async () => {
    const { token } = await edge.rollout("live");
    for (const text of CRLF) {
      for (const answer of [
        await chat(edge, token, text, { model: text, user: text, metadata: { session_id: text } }),
        await ask(edge, `GET /v1/models/${encodeURIComponent(text)}`, { token: admin }),
        await ask(edge, `GET /v1/rollouts/${encodeURIComponent(text)}`, { token: admin }),
        await ask(edge, `GET /${encodeURIComponent(text)}`, {}),
        await ask(edge, "POST /v1/feedback", { token: admin, body: { rollout_id: text, value: 1 } }),
      ]) {
        expect(answer.headers.get("x-injected")).toBeNull();
        expect([...answer.headers.keys()].filter((name) => name.includes("inject"))).toEqual([]);
      }
    }
    const sent = `GET /v1/models HTTP/1.1\r\nhost: edge\r\nconnection: close\r\nauthorization: Bearer ${token}\r\n`;
    const odd = await raw(edge, `${sent}x-fulgur-session: a\rx-injected: yes\r\n\r\n`);
    expect(odd.slice(0, odd.indexOf("\r\n\r\n"))).not.toContain("x-injected");
  });

  /** What would be a second request if two readers saw different ends of the first. */
  const SMUGGLED = "GET /.well-known/jwks.json HTTP/1.1\r\nhost: edge\r\nx: ";

  test.each([
    ["two lengths", ["content-length: 2", `content-length: ${SMUGGLED.length + 2}`], "{}"],
    ["two lengths in one", [`content-length: 2, ${SMUGGLED.length + 2}`], "{}"],
    ["a length with a sign", ["content-length: +2"], "{}"],
    ["a negative length", ["content-length: -1"], "{}"],
    ["a length in hex", ["content-length: 0x2"], "{}"],
    ["a length that is no number", ["content-length: two"], "{}"],
    ["a length beyond all bounds", ["content-length: 99999999999999999999999999"], "{}"],
    ["a length after a space", ["content-length : 2"], "{}"],
    ["an unknown coding", ["transfer-encoding: xchunked"], "0\r\n\r\n"],
    ["a coding in a list", ["transfer-encoding: chunked, identity"], "0\r\n\r\n"],
    ["a coding on a folded line", ["transfer-encoding:\r\n chunked"], "0\r\n\r\n"],
    ["a chunk that is no number", ["transfer-encoding: chunked"], "zz\r\n\r\n"],
    ["a chunk with a sign", ["transfer-encoding: chunked"], "-1\r\n\r\n"],
    ["a chunk beyond all bounds", ["transfer-encoding: chunked"], "fffffffffffffffff\r\n"],
  ])("with %s smuggles no second request", async (_what, headers, body) => {
    const head = ["POST /v1/policies HTTP/1.1", "host: edge", `authorization: Bearer ${admin}`, ...headers];
    const text = await raw(edge, `${head.join("\r\n")}\r\n\r\n${body}${SMUGGLED}\r\n\r\n`);
    expect(text).not.toContain('"kty"');
    expect(statusesOf(text).filter((status) => status < 400 || (status >= 500 && status !== 501))).toEqual([]);
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });

  test("with a length and chunks is read one way, by its chunks, and what follows is a request that needs its own token", async () => {
    const head = `POST /v1/rollouts/drop HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer ${admin}\r\n`;
    const second = "GET /v1/policies HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n";
    for (const lengths of [
      `content-length: 5\r\ntransfer-encoding: chunked`,
      `transfer-encoding: chunked\r\ncontent-length: 5`,
    ]) {
      const text = await raw(edge, `${head}${lengths}\r\n\r\n0\r\n\r\n${second}`);
      expect(text).not.toContain('"route_version"');
      expect(statusesOf(text).every((status) => status === 400 || status === 401)).toBe(true);
    }
  });

  test("carries many requests, each with its own rights", async () => {
    const line = (token?: string): string =>
      `GET /v1/policies HTTP/1.1\r\nhost: edge\r\n${token === undefined ? "" : `authorization: Bearer ${token}\r\n`}\r\n`;
    const text = await raw(edge, line(admin) + line() + line(admin) + line("x".repeat(20)));
    expect(statusesOf(text)).toEqual([200, 401, 200, 401]);
  });

  test("with too many or too long headers is refused or served, not crashed", async () => {
    const head = `GET /v1/policies HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n`;
    for (const more of [
      `x: ${"a".repeat(300_000)}\r\n`,
      "x: a\r\n".repeat(5000),
      ": a\r\n",
      "x\r\n",
      "\u0000: a\r\n",
      "x: \u0000\r\n",
      "host: other\r\n",
      "x y: a\r\n",
    ]) {
      const text = await raw(edge, `${head}${more}\r\n`, { waitMs: 2000 });
      expect(statusesOf(text).filter((status) => status === 200 || status === 500)).toEqual([]);
    }
    for (const garbage of [
      "\u0016\u0003\u0001\u0002",
      "GET\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "\r\n\r\n\r\n",
    ]) {
      const text = await raw(edge, garbage, { waitMs: 500 });
      expect(statusesOf(text).filter((status) => status === 500)).toEqual([]);
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });
});

describe("what browsers are told", () => {
  test("is on every answer: nothing runs that is not a file of this edge, nobody frames it, nothing is sniffed", async () => {
    for (const path of ["/", "/app.js", "/docs", "/nothing", "/healthz", "/v1/policies", "/api/rollouts", "/metrics"]) {
      const { headers } = await ask(edge, `GET ${path}`);
      expect({ path, sniff: headers.get("x-content-type-options"), referrer: headers.get("referrer-policy") }).toEqual({
        path,
        sniff: "nosniff",
        referrer: "no-referrer",
      });
      const policy = new Map(
        (headers.get("content-security-policy") ?? "").split("; ").map((rule) => {
          const [name = "", ...values] = rule.split(" ");
          return [name, values.join(" ")];
        }),
      );
      expect(policy.get("default-src")).toBe("'none'");
      expect(policy.get("script-src")).toBe("'self'");
      expect(policy.get("style-src")).toBe("'self'");
      expect(policy.get("frame-ancestors")).toBe("'none'");
      expect(policy.get("base-uri")).toBe("'none'");
      expect(policy.get("form-action")).toBe("'none'");
    }
  });

  test("lets no other site read an answer", async () => {
    const origin = { origin: "https://evil.example", "access-control-request-method": "POST" };
    for (const route of ["GET /v1/session", "GET /v1/policies", "OPTIONS /v1/chat/completions", "GET /"]) {
      const { headers } = await ask(edge, route, { headers: origin, token: admin });
      expect([...headers.keys()].filter((name) => name.startsWith("access-control-"))).toEqual([]);
    }
  });
});
