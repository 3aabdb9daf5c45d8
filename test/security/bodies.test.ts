import { connect } from "node:net";
import { gzipSync } from "node:zlib";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ROUTES } from "#shared/routes.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { GOOD_BODIES, nameOf, routesOf } from "./routes.ts";
import { ask, HEALTHY, healthOf, expectNoCrash, expectOf, expectRefusal, raw, statusesOf } from "./support.ts";

/** Bodies that are too large, too deep, too slow, or not what they say they are. */

let edge: TestEdge;
let admin: string;
let call: string;
/** Begun first, since each is answered only at the limit, and looked at by the last test that may wait. */
let waited: Promise<[path: string, text: string]>[];
beforeAll(async () => {
  edge = await startTestEdge();
  admin = await edge.mint({ scopes: ["admin"] });
  ({ token: call } = await edge.rollout("live"));
  waited = ["/v1/chat/completions", "/v1/tasks", "/v1/traces", "/api/rollouts"].flatMap((path) =>
    ["content-length: 5000", "transfer-encoding: chunked"].map(async (framing): Promise<[string, string]> => {
      const head = `POST ${path} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer ${tokenFor(`POST ${path}`)}\r\n`;
      const body = framing.startsWith("content") ? '{"model":' : '9\r\n{"model":\r\n';
      const sent = `${head}content-type: application/json\r\n${framing}\r\n\r\n${body}`;
      return [path, await raw(edge, sent, { waitMs: 35_000 })];
    }),
  );
});
afterAll(() => edge.stop());

/** What the routes under test are sent, unless a test sends something else. */
const CHAT = { model: "any", messages: [{ role: "user", content: "hi" }] };

const LLM = new Set(
  ["chat/completions", "completions", "responses", "messages", "embeddings"].map((path) => `POST /v1/${path}`),
);

function tokenFor(route: string): string {
  return LLM.has(route) ? call : admin;
}

function send(path: string, body: unknown, headers: Readonly<Record<string, string>> = {}) {
  const route = `POST ${path}`;
  return ask(edge, route, { token: tokenFor(route), body, headers });
}

test("every route that may have a body is tried", () => {
  const withBody = ROUTES.filter(({ method }) => method !== "GET" && method !== "DELETE").map(nameOf);
  expect(routesOf(Object.keys(GOOD_BODIES))).toEqual(new Set(withBody));
});

describe("a body that is too large", () => {
  test("is refused by its declared length before it is sent", async () => {
    for (const path of ["/v1/chat/completions", "/v1/tasks", "/api/rollouts"]) {
      const head = [
        `POST ${path} HTTP/1.1`,
        "host: edge",
        `authorization: Bearer ${tokenFor(`POST ${path}`)}`,
        "content-type: application/json",
        "content-length: 2000000000",
        "",
        "{",
      ];
      const text = await raw(edge, head.join("\r\n"));
      expectOf([path, statusesOf(text)], text).toEqual([path, [413]]);
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });

  test("is refused in chunks without a length, before all of it has come", async () => {
    for (const [path, limit] of [
      ["/v1/chat/completions", 1_048_576],
      ["/v1/tasks", 8 * 1_048_576],
      ["/v1/traces", 4 * 1_048_576],
    ] as const) {
      const answer = await unending(path, limit);
      expectOf([path, statusesOf(answer)], answer).toEqual([path, [413]]);
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });

  test("is taken up to the limit", async () => {
    const content = "x".repeat(1_000_000);
    const taken = await send("/v1/chat/completions", { ...CHAT, messages: [{ role: "user", content }] });
    expect(taken.status).toBe(200);
    expectRefusal(
      await send("/v1/chat/completions", { ...CHAT, messages: [{ role: "user", content: content + content }] }),
      413,
    );
  });
});

/** Sends one chunk more than a route takes, and never the end. */
function unending(path: string, limit: number): Promise<string> {
  const auth = `authorization: Bearer ${tokenFor(`POST ${path}`)}`;
  const head = `POST ${path} HTTP/1.1\r\nhost: edge\r\n${auth}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n`;
  return raw(edge, head + `10000\r\n${" ".repeat(65_536)}\r\n`.repeat(limit / 65_536 + 1));
}

describe("a body that never ends", () => {
  test("holds up nobody else, and is given up when its client is gone", async () => {
    const { hostname, port } = new URL(edge.url);
    const before = edge.inference.requests.length;
    const stalled = await Promise.all(
      Array.from({ length: 60 }, async (_, index) => {
        const path = ["/v1/chat/completions", "/v1/tasks", "/v1/traces"][index % 3] ?? "";
        const socket = connect(Number(port), hostname);
        socket.on("error", () => undefined);
        const auth = `authorization: Bearer ${tokenFor(`POST ${path}`)}`;
        const framing = index % 2 === 0 ? "content-length: 5000" : "transfer-encoding: chunked";
        await new Promise<void>((resolve) =>
          socket.write(
            `POST ${path} HTTP/1.1\r\nhost: edge\r\n${auth}\r\ncontent-type: application/json\r\n${framing}\r\n\r\n{"model":`,
            () => resolve(),
          ),
        );
        return socket;
      }),
    );
    const started = performance.now();
    expect((await send("/v1/chat/completions", CHAT)).status).toBe(200);
    expect((await ask(edge, "GET /v1/policies", { token: admin })).status).toBe(200);
    expect(performance.now() - started).toBeLessThan(5000);
    for (const socket of stalled) socket.destroy();
    expect(await healthOf(edge)).toEqual(HEALTHY);
    expect(edge.inference.requests.length).toBe(before + 1);
  });
});

describe("a gzip bomb", () => {
  test("ends at the limit, and gzip is taken where it is said to be", async () => {
    const gzip = { "content-encoding": "gzip" };
    const good = gzipSync(JSON.stringify({ resourceSpans: [] }));
    expect((await send("/v1/traces", good, gzip)).status).toBe(200);
    const bomb = gzipSync(Buffer.alloc(200 * 1_048_576, 0x20));
    for (const path of ["/v1/traces", "/v1/logs"]) expectRefusal(await send(path, bomb, gzip), 413);
    const twice = gzipSync(gzipSync(Buffer.alloc(50 * 1_048_576)));
    expectRefusal(await send("/v1/traces", twice, gzip), 400, 413);
    expectRefusal(await send("/v1/traces", good.subarray(0, -5), gzip), 400);
    expectRefusal(await send("/v1/traces", Buffer.from("not gzip"), gzip), 400);
    expectRefusal(await send("/v1/traces", good, { "content-encoding": "gzip, gzip" }), 400);
    expectRefusal(await send("/v1/traces", good, { "content-encoding": "br" }), 400);
    // Elsewhere it is a body that is not JSON.
    expectRefusal(await send("/v1/chat/completions", gzipSync(JSON.stringify(CHAT)), gzip), 400, 415);
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });
});

const deep = (open: string, close: string, levels = 10_000): string => open.repeat(levels) + close.repeat(levels);

/** Placed where a field takes any JSON, and in place of the whole body. */
const DEEP = [deep("[", "]"), deep('{"a":', "}").replace("}", "1}"), "[".repeat(100_000)];

/** A JSON text with one of its values replaced by another text. */
function* spoiled(body: unknown, text: string): Generator<string> {
  yield text;
  if (typeof body !== "object" || body === null) return;
  const fields: [string, unknown][] = Object.entries(body);
  for (const [name, value] of fields) {
    for (const inner of spoiled(value, text)) {
      const placeholder = "\u0001placeholder";
      const spoilt = Array.isArray(body) ? [placeholder] : { ...body, [name]: placeholder };
      yield JSON.stringify(spoilt).replace(JSON.stringify(placeholder), () => inner);
    }
  }
}

describe("JSON that is", () => {
  test.each([
    ["deep", DEEP],
    ["a number beyond all bounds", ["1e999", "-1e999", "9".repeat(400), "1e-400", "-0", "9007199254740993", "NaN"]],
    ["a lone surrogate, a NUL or a byte order mark", ['"\\ud800"', '"\\udc00\\ud800"', '"a\\u0000b"', '"\\ufeff"']],
    ["of another type", ["null", "true", "0", '""', "[]", "{}", "[[]]", '{"0":1,"length":1}', '"x"']],
    ["of a prototype", ['{"__proto__":{"polluted":true}}', '{"constructor":{"prototype":{"polluted":true}}}']],
  ] as const)(
    "%s is taken or refused on every route, and changes nothing else",
    { timeout: 60_000 },
    async (_what, texts) => {
      for (const [route, body] of Object.entries(GOOD_BODIES)) {
        const bodies = texts.flatMap((text) => [...spoiled(body, text)]);
        await Promise.all(
          bodies.map(async (text) => {
            const answer = await ask(edge, route, { token: tokenFor(route), body: text });
            expectOf(answer.status, `${route} ${text.slice(0, 100)}: ${answer.text.slice(0, 300)}`).toBeLessThan(500);
            expectNoCrash(answer);
          }),
        );
      }
      expect(await healthOf(edge)).toEqual(HEALTHY);
    },
  );

  test("keyed by a prototype's name is refused or kept to itself, on every route", async () => {
    for (const [route, body] of Object.entries(GOOD_BODIES)) {
      const fields = JSON.stringify(body)
        .replace(/^\[?\{/, "")
        .replace(/\}\]?$/, "");
      const [open, close] = Array.isArray(body) ? ["[{", "}]"] : ["{", "}"];
      for (const odd of [
        '"__proto__":{"polluted":1,"scopes":["admin"],"status":999}',
        '"constructor":{"prototype":{"polluted":1}}',
        '"prototype":{"polluted":1}',
        '"hasOwnProperty":1,"toString":1,"valueOf":1',
        '"then":1,"toJSON":1',
      ]) {
        for (const text of [`${open}${odd}${fields === "" ? "" : `,${fields}`}${close}`]) {
          const answer = await ask(edge, route, { token: tokenFor(route), body: text });
          expectOf(answer.status, `${route} ${text.slice(0, 200)}: ${answer.text.slice(0, 300)}`).toBeLessThan(500);
        }
      }
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
    // Anything that is asked now is as it was: no field has come out of nowhere.
    const policies = await ask(edge, "GET /v1/policies", { token: admin });
    expect(policies.text).not.toContain("polluted");
    const rows = await edge.store.db.all<{ settings: string }>(sql`select settings from tenants where id = 'default'`);
    expect(JSON.stringify(rows)).not.toContain("polluted");
  });

  test("not JSON or not text is refused", async () => {
    const bytes: readonly Uint8Array[] = [
      Buffer.from("{"),
      Buffer.from(""),
      Buffer.from("{'model':'x'}"),
      Buffer.from('{"model":"x",}'),
      Buffer.from("\u0000"),
      Buffer.from('{"model":"a\u0000b"}'),
      Buffer.from([0xff, 0xfe, 0x7b, 0x00, 0x7d, 0x00]),
      Buffer.from([0x7b, 0x22, 0x6d, 0xc0, 0xaf, 0x22, 0x3a, 0x31, 0x7d]),
      Buffer.from([0x7b, 0x22, 0xed, 0xa0, 0x80, 0x22, 0x3a, 0x31, 0x7d]),
      Buffer.from("<?xml version='1.0'?><!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]><x>&y;</x>"),
      Buffer.from("model=x&messages=y"),
    ];
    for (const route of Object.keys(GOOD_BODIES)) {
      for (const body of bytes) {
        const answer = await ask(edge, route, { token: tokenFor(route), body });
        // An absent body is {} where a route's fields all have defaults.
        expectOf([200, 201, 400, 404, 409, 415, 422], `${route} ${String(body)}: ${answer.text}`).toContain(
          answer.status,
        );
        expect(answer.text).not.toContain("root:");
      }
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });

  test("with a field twice means its last one, and only that", async () => {
    const { token } = await edge.rollout("live");
    const body = '{"model":"any","model":"flight@0","n":2,"n":1,"messages":[{"role":"user","content":"hi"}]}';
    const answer = await ask(edge, "POST /v1/chat/completions", { token, body });
    expectOf(answer.status, answer.text).toBe(200);
    expect(edge.inference.requests.at(-1)).toMatchObject({ model: "flight@0", n: 1 });
  });

  test("of another content type is read as JSON or refused, and never as a form", async () => {
    for (const type of [
      "text/plain",
      "application/x-www-form-urlencoded",
      "multipart/form-data; boundary=x",
      "application/xml",
      "application/json; charset=utf-7",
      "application/octet-stream",
      "x".repeat(4000),
    ]) {
      for (const [route, body] of Object.entries(GOOD_BODIES)) {
        const headers = { "content-type": type };
        const answer = await ask(edge, route, { token: tokenFor(route), body: JSON.stringify(body), headers });
        expectOf(answer.status, `${type.slice(0, 60)} ${route}: ${answer.text}`).toBeLessThan(500);
      }
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });
});

describe("a body that stops", () => {
  test("is answered at the app's own limit", { timeout: 40_000 }, async () => {
    for (const [path, text] of await Promise.all(waited)) {
      expectOf([path, statusesOf(text)], text).toEqual([path, [400]]);
      expect(text).toContain("did not come within");
    }
  });
});
