import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ask, HEALTHY, healthOf, expectNoCrash, expectOf, expectRefusal, raw, statusesOf } from "./support.ts";

let edge: TestEdge;
let admin: string;
beforeAll(async () => {
  edge = await startTestEdge();
  admin = await edge.mint({ scopes: ["admin"] });
});
afterAll(() => edge.stop());

/** One request line as it is written: HTTP clients tidy paths up. */
async function line(method: string, target: string, headers: readonly string[] = []): Promise<string> {
  const head = [`${method} ${target} HTTP/1.1`, "host: 127.0.0.1", "connection: close", ...headers];
  return raw(edge, `${head.join("\r\n")}\r\n\r\n`);
}

describe("a route by another spelling", () => {
  // Each leads, if anywhere, to GET /v1/policies.
  const SPELLINGS = [
    "/v1/policies",
    "/v1/policies/",
    "/v1//policies",
    "//v1/policies",
    "/V1/POLICIES",
    "/v1/Policies",
    "/v1/./policies",
    "/./v1/policies",
    "/v1/models/../policies",
    "/healthz/../v1/policies",
    "/.well-known/../v1/policies",
    "/%76%31/policies",
    "/v1%2Fpolicies",
    "/v1%2fpolicies",
    "/v1/%70olicies",
    "/v1/%2e%2e/v1/policies",
    "/v1/..%2fv1%2fpolicies",
    "/v1/..;/policies",
    "/v1;x=y/policies",
    "/v1/policies%00",
    "/v1/policies%00.css",
    "/v1/policies/.css",
    "/v1/policies;.js",
    "/v1/policies%0d%0a",
    "/v1\\policies",
    "/v1/%5cpolicies",
    "/v1/policies#x",
    "/v1/policies?",
    "/v1/policies??",
    "http://127.0.0.1/v1/policies",
    "http://elsewhere.example/v1/policies",
  ] as const;

  test("never gets past the token", async () => {
    const body = '"route_version"';
    expect(await line("GET", "/v1/policies", [`authorization: Bearer ${admin}`])).toContain(body);
    for (const target of SPELLINGS) {
      const text = await line("GET", target);
      expectOf(statusesOf(text), target).toHaveLength(1);
      expectOf(statusesOf(text)[0], `${target}: ${text}`).toBeLessThan(500);
      expectOf(text, target).not.toContain(body);
      // The spelling that has the token may be the route or none, never a crash.
      const withToken = await line("GET", target, [`authorization: Bearer ${admin}`]);
      expectOf(statusesOf(withToken)[0], `${target}: ${withToken}`).toBeLessThan(500);
    }
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });

  test("of the LLM route never makes a call without a token, and writes nothing", async () => {
    const before = edge.inference.requests.length;
    for (const target of [
      "/v1/chat/completions",
      "/v1/chat/completions/",
      "/v1/chat/completions?x=1",
      "/v1/chat/completions#x",
      "/v1//chat/completions",
      "/v1/chat%2fcompletions",
      "/V1/chat/completions",
      "//v1/chat/completions",
      "/v1/./chat/completions",
      "http://elsewhere.example/v1/chat/completions",
    ]) {
      const text = await raw(
        edge,
        `POST ${target} HTTP/1.1\r\nhost: edge\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 63\r\n\r\n` +
          `{"model":"any","messages":[{"role":"user","content":"hello 12"}]}`.slice(0, 63),
      );
      expect([target, statusesOf(text).filter((status) => status < 300 || status >= 500)]).toEqual([target, []]);
    }
    expect(edge.inference.requests.length).toBe(before);
  });
});

describe("odd requests", () => {
  test("a NUL, a control character or bytes that are no text in a path are refused, not served", async () => {
    for (const target of [
      "/v1/rollouts/%00",
      "/v1/rollouts/%00%00",
      "/v1/rollouts/ro_1%00' or 1=1",
      "/v1/rollouts/%ff%fe",
      "/v1/rollouts/%c0%af",
      "/v1/rollouts/%ed%a0%80",
      "/v1/rollouts/%",
      "/v1/rollouts/%zz",
      "/v1/rollouts/%u0041",
      "/v1/models/%00",
      "/v1/models/%ff",
      "/v1/models/%",
      "/v1/agents/%00",
      "/v1/agents/%E0%A4%A",
      "/v1/providers/__proto__",
      "/v1/agents/__proto__",
      "/v1/agents/constructor",
      "/v1/models/__proto__",
      "/v1/policies/%2e%2e/route",
      "/v1/runs/%00/steps",
      "/v1/rollouts?limit=%00",
      "/v1/rollouts?limit=1&limit=2",
      "/v1/rollouts?limit=1e9",
      "/v1/rollouts?limit=-1",
      "/v1/rollouts?after=%00%ff",
      "/v1/rollouts?__proto__=1",
      "/v1/rollouts?__proto__[x]=1",
      "/v1/rollouts?constructor=1",
      "/v1/audit?before=%00",
      "/v1/usage?since=0000-00-00",
      "/v1/usage?since=9999-99-99",
      "/v1/usage?rollouts=NaN",
    ]) {
      const text = await line("GET", target, [`authorization: Bearer ${admin}`]);
      const [status = 0] = statusesOf(text);
      expectOf(status, `${target}: ${text}`).toBeGreaterThanOrEqual(200);
      expectOf(status, `${target}: ${text}`).toBeLessThan(500);
    }
    const bytes = Buffer.from(
      "GET /v1/rollouts/\u0000\u0001\u00ff HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n",
      "latin1",
    );
    const [status = 400] = statusesOf(await raw(edge, bytes));
    expect([400, 401, 404]).toContain(status);
    expect(await healthOf(edge)).toEqual(HEALTHY);
  });

  test("a very long path and a very long query are answered, and not repeated at length", async () => {
    for (const path of [
      `/v1/rollouts/${"a".repeat(20_000)}`,
      `/v1/models/${"a/".repeat(5_000)}`,
      `/${"../".repeat(4_000)}etc/passwd`,
      `/v1/${"/".repeat(10_000)}`,
      `/v1/rollouts?after=${"a".repeat(20_000)}`,
      `/v1/rollouts?${"a=1&".repeat(5_000)}`,
      `/v1/subjects/${"s".repeat(20_000)}`,
    ]) {
      for (const method of ["GET", "POST", "DELETE"]) {
        const answer = await ask(edge, `${method} ${path}`, { token: admin });
        expectNoCrash(answer);
        expect(answer.text.length).toBeLessThan(2000);
      }
    }
  });

  test("methods are those that a route has, whatever a header says", async () => {
    for (const method of ["PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "FOO", "get", "TRACK"]) {
      const text = await line(method, "/v1/policies", [`authorization: Bearer ${admin}`]);
      expectOf(text, method).not.toContain('"route_version"');
      expectOf(
        statusesOf(text).filter((status) => status >= 500 && status !== 501),
        `${method}: ${text}`,
      ).toEqual([]);
    }
    for (const header of ["x-http-method-override", "x-method-override", "x-http-method"]) {
      const answer = await ask(edge, "GET /v1/agents/flight", { token: admin, headers: { [header]: "DELETE" } });
      expectOf(answer.status, header).toBe(200);
    }
    const created = await ask(edge, "GET /v1/keys?_method=POST", { token: admin });
    expect(JSON.parse(created.text)).toEqual({ keys: [] });
    // TRACE would hand a page the token that it may not read.
    const trace = await line("TRACE", "/v1/policies", ["x-secret: s3cret"]);
    expect(trace).not.toContain("s3cret");
    const health = await line("HEAD", "/healthz", []);
    expect(statusesOf(health)).toEqual([200]);
  });

  test("an address in a header changes nothing", async () => {
    for (const headers of [
      { "x-original-url": "/healthz" },
      { "x-rewrite-url": "/healthz" },
      { "x-forwarded-host": "evil.example", "x-forwarded-proto": "https", forwarded: "host=evil.example" },
    ]) {
      expectRefusal(await ask(edge, "GET /v1/policies", { headers }), 401);
    }
    const page = await line("GET", "/", ["x-forwarded-host: evil.example"]);
    expect(page).not.toContain("evil.example");
  });

  test("a session is for the page under a loopback name, not for a name that was led here", async () => {
    const session = (host: string, more: string[] = []): Promise<string> =>
      raw(edge, [`GET /v1/session HTTP/1.1`, `host: ${host}`, "connection: close", ...more, "", ""].join("\r\n"));
    expect(statusesOf(await session("127.0.0.1:1"))).toEqual([200]);
    for (const host of [
      "evil.example",
      "127.0.0.1.evil.example",
      "localhost.evil.example",
      "evil.example:80",
      "[::2]",
    ]) {
      expectOf(statusesOf(await session(host)), host).toEqual([404]);
    }
    for (const site of ["cross-site", "same-site", "anything"]) {
      expectOf(statusesOf(await session("localhost", [`sec-fetch-site: ${site}`])), site).toEqual([403]);
    }
    expect(statusesOf(await session("evil.example", ["x-forwarded-host: localhost"]))).toEqual([404]);
  });
});

describe("the page's files", () => {
  test("cannot be escaped", async () => {
    expect(await line("GET", "/app.js")).toContain("javascript");
    for (const target of [
      "/../package.json",
      "/../../../../../../etc/passwd",
      "/..%2f..%2f..%2f..%2fetc%2fpasswd",
      "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
      "/%252e%252e/%252e%252e/etc/passwd",
      "/..%5c..%5cetc%5cpasswd",
      "/....//....//etc/passwd",
      "/app.js/../../package.json",
      "/app.js%00.html",
      "/app.js/..%00/package.json",
      "//etc/passwd",
      "/file:///etc/passwd",
      "/.env",
      "/.git/config",
      "/worker.mjs",
      "/edge/worker.ts",
      "/node_modules/jose/package.json",
      "/%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
      "/cdn-cgi/mf/scheduled",
      "/cdn-cgi/handler/scheduled",
      "/cdn-cgi/trace",
    ]) {
      const text = await line("GET", target);
      expectOf(text, target).not.toMatch(/root:|"dependencies"|"version":|SIGNING_KEYS|\[core\]|STORE_WRITE_TOKEN/);
      // What is no file is the page itself, or nothing.
      const [status = 0] = statusesOf(text);
      expectOf([200, 301, 304, 307, 308, 400, 404], `${target}: ${text.slice(0, 200)}`).toContain(status);
      if (status === 200) expectOf(text, target).toContain('<div id="app">');
      // A redirect stays here.
      if (status >= 300 && status < 400) expectOf(text, target).toMatch(/\r\nlocation: \/(?![/\\])/i);
    }
  });
});
