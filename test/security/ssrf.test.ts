import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { outboundUrl } from "../../edge/outbound-url.ts";
import { allowedEndpoint } from "../../edge/routes/agl/endpoint.ts";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { ask, chat, expectNoCrash, expectRefusal } from "./support.ts";

/** Addresses that the edge is told to call: none may lead into the network that it runs in. */

/** Hosts that are, in whatever notation, not public. */
const PRIVATE_HOSTS = [
  "10.0.0.1",
  "10.255.255.255",
  "172.16.0.1",
  "172.31.255.255",
  "192.168.1.1",
  "192.0.0.8",
  "100.64.0.1",
  "198.18.0.1",
  "169.254.169.254",
  "169.254.170.2",
  "0.0.0.0",
  "0.1.2.3",
  "224.0.0.1",
  "240.0.0.1",
  "255.255.255.255",
  // Other notations of 169.254.169.254 and of 10.0.0.1.
  "2852039166",
  "0xa9fea9fe",
  "0xa9.0xfe.0xa9.0xfe",
  "0251.0376.0251.0376",
  "169.254.43518",
  "169.16689662",
  "10.1",
  "012.0.0.1",
  "%31%30.0.0.1",
  "１０.0.0.1",
  "10。0。0。1",
  "10.0.0.1.",
  "[fe80::1]",
  "[fc00::1]",
  "[fd00:ec2::254]",
  "[fec0::1]",
  "[ff02::1]",
  "[::]",
  "[::ffff:10.0.0.1]",
  "[::ffff:169.254.169.254]",
  "[::ffff:a9fe:a9fe]",
  "[0:0:0:0:0:ffff:0a00:0001]",
  "[::10.0.0.1]",
  "[64:ff9b::10.0.0.1]",
  "[64:ff9b::169.254.169.254]",
  "[64:ff9b:1::1]",
  "[2002:a00:1::]",
  "[2002:a9fe:a9fe::1]",
  "[2001:0:a00:1::]",
  "[::ffff:0:10.0.0.1]",
  "localhost.",
  "LOCALHOST.",
  "foo.localhost",
  "foo.localhost.",
  "metadata",
  "metadata.google.internal",
  "metadata.google.internal.",
  "intranet",
  "router.local",
  "printer.home.arpa",
  "kubernetes.default.svc.cluster.local",
] as const;

/** Loopback in every notation: for an edge on one machine only under its usual names. */
const LOOPBACK_HOSTS = [
  "127.0.0.1",
  "127.0.0.2",
  "127.1",
  "2130706433",
  "0x7f000001",
  "017700000001",
  "0177.0.0.1",
  "localhost",
  "[::1]",
  "[::ffff:127.0.0.1]",
  "[::127.0.0.1]",
  "[0:0:0:0:0:0:0:1]",
] as const;

const ODD = [
  "https://user@example.com/v1",
  "https://user:secret-word@example.com/v1",
  "https://@10.0.0.1",
  "https://example.com@10.0.0.1/",
  "https:10.0.0.1",
  "https:/10.0.0.1",
  "https:\\\\10.0.0.1",
  "https://10.0.0.1\t/",
  "ht\ntps://10.0.0.1/",
  "//10.0.0.1/",
  "http://example.com/v1",
  "ftp://example.com/",
  "file:///etc/passwd",
  "gopher://example.com/",
  "data:application/json,{}",
  "javascript:alert(1)",
  "blob:https://example.com/1",
  "ws://example.com/",
  "https://",
  "https://?",
  "https://exa mple.com/",
  "https://example.com:99999/",
  "https://[::1",
  "https://256.256.256.256/",
  "",
  " ",
  "x",
] as const;

describe("an address", () => {
  const base = { what: "the address", local: false } as const;

  test("on a public name or number is taken, so that what follows is refused for its own reason", () => {
    for (const url of [
      "https://api.openai.com/v1",
      "https://example.com:8443/v1",
      "https://1.1.1.1/v1",
      "https://[2606:4700::1111]/v1",
      "https://172.32.0.1/",
      "https://100.128.0.1/",
      "https://11.0.0.1/",
      "https://localhost.example.com/",
      "https://xn--bcher-kva.example/",
    ]) {
      expect(outboundUrl(url, base)).toBe(url.replace(/\/$/, ""));
    }
  });

  test.each([false, true])("that is private is refused, an edge on one machine (%s) or not", (local) => {
    const urls = PRIVATE_HOSTS.flatMap((host) => [
      `https://${host}/v1`,
      `http://${host}/v1`,
      `https://${host}:8443/v1`,
    ]);
    expect(takenOf(urls, local)).toEqual([]);
  });

  test("that is this machine is refused, but for an edge on one machine by the usual names", () => {
    const urls = LOOPBACK_HOSTS.flatMap((host) => [`https://${host}:8080/v1`, `http://${host}:8080/v1`]);
    expect(takenOf(urls, false)).toEqual([]);
    for (const host of ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"]) {
      expect(outboundUrl(`http://${host}:8080/v1`, { ...base, local: true })).toBe(
        `http://${host.toLowerCase()}:8080/v1`,
      );
    }
    expect(takenOf(["http://127.0.0.2/", "http://127.0.0.1.example.com/"], true)).toEqual([]);
  });

  test("of another form is refused, and what is secret in it is not repeated", () => {
    expect(takenOf(ODD, false)).toEqual([]);
  });
});

/** Those of the addresses that are taken; each of the others is refused for a reason that repeats no secret. */
function takenOf(urls: readonly string[], local: boolean): string[] {
  return urls.filter((url) => {
    try {
      outboundUrl(url, { what: "the address", local });
      return true;
    } catch (thrown) {
      expect(thrown).toBeInstanceOf(FulgurError);
      expect(thrown).toMatchObject({
        code: "ERR_INVALID_REQUEST",
        message: expect.not.stringContaining("secret-word") as string,
      });
      return false;
    }
  });
}

describe("the edge", () => {
  let edge: TestEdge;
  let admin: string;
  /** What must never be asked, and what sends there. */
  let inside: Server;
  let insideUrl: string;
  let asked = 0;
  let redirecting: Server;
  let redirectingUrl: string;
  let redirected = 0;

  beforeAll(async () => {
    inside = createServer((_request, response) => {
      asked++;
      response.setHeader("content-type", "application/json");
      response.end('{"secret":"of the network"}');
    });
    redirecting = createServer((request, response) => {
      redirected++;
      request.resume();
      // 307 and 308 would carry body and key along.
      const status = [301, 302, 303, 307, 308][redirected % 5] ?? 307;
      response.writeHead(status, { location: `${insideUrl}/latest/meta-data` }).end();
    });
    insideUrl = await listening(inside);
    redirectingUrl = await listening(redirecting);
    edge = await startTestEdge({ inferenceUrl: redirectingUrl });
    admin = await edge.mint({ scopes: ["admin"] });
  });
  afterAll(async () => {
    await edge.stop();
    inside.close();
    redirecting.close();
  });

  test("takes no private address for a provider, an agent, an evaluator, a collector or a model's endpoint", async () => {
    const hosts = [...PRIVATE_HOSTS, "user:secret-word@example.com"];
    for (const url of [...hosts.map((host) => `https://${host}/v1`), ...ODD]) {
      const answers = await Promise.all([
        ask(edge, "PUT /v1/providers/p", { token: admin, body: { base_url: url } }),
        ask(edge, "PUT /v1/agents/a", { token: admin, body: { policy: "flight", url } }),
        ask(edge, "PUT /v1/agents/a", { token: admin, body: { policy: "flight", evaluator: { type: "worker", url } } }),
        ask(edge, "PATCH /v1/tenant", { token: admin, body: { otlp_export: { url } } }),
      ]);
      for (const answer of answers) {
        expectRefusal(answer, 400);
        expect(answer.text).not.toContain("secret-word");
      }
      expect(() => allowedEndpoint(url, { local: true, bases: [] })).toThrow(FulgurError);
    }
    for (const base of ["http://10.1.2.3:8000"]) {
      const options = { local: false, bases: [base] };
      expect(allowedEndpoint(`${base}/v1/`, options)).toBe(`${base}/v1`);
      for (const beside of [`${base}1/v1`, `${base}@10.0.0.1`, `${base}.evil.example`, "http://10.1.2.4:8000"]) {
        expect(() => allowedEndpoint(beside, options)).toThrow(FulgurError);
      }
    }
    const kept = await ask(edge, "GET /v1/providers", { token: admin });
    expect(JSON.parse(kept.text)).toEqual({ providers: [] });
    // A public one and, on this machine, a loopback one are taken.
    for (const base_url of ["https://example.com/v1", insideUrl]) {
      expect((await ask(edge, "PUT /v1/providers/p", { token: admin, body: { base_url } })).status).toBe(200);
    }
  });

  test("follows no redirect of inference", async () => {
    const { token } = await edge.rollout("live");
    const before = redirected;
    expectRefusal(await chat(edge, token), 502);
    expectRefusal(await chat(edge, token, "hi", { stream: true }), 502);
    expect(redirected).toBeGreaterThan(before);
    expect(asked).toBe(0);
  });

  test("follows no redirect of a provider", async () => {
    await ask(edge, "PUT /v1/providers/moved", { token: admin, body: { base_url: `${redirectingUrl}/v1` } });
    const mapped = await ask(edge, "POST /v1/agents/flight/models", {
      token: admin,
      body: { models: { frozen: "provider:moved/m" } },
    });
    expect([mapped.status, mapped.text.includes("moved")]).toEqual([200, true]);
    const { token } = await edge.rollout("live");
    for (const [path, body] of [
      ["chat/completions", { model: "frozen", messages: [{ role: "user", content: "hi" }] }],
      ["completions", { model: "frozen", prompt: "hi" }],
      ["responses", { model: "frozen", input: "hi" }],
      ["messages", { model: "frozen", max_tokens: 5, messages: [{ role: "user", content: "hi" }] }],
      ["embeddings", { model: "frozen", input: "hi" }],
    ] as const) {
      const before = redirected;
      const answer = await ask(edge, `POST /v1/${path}`, { token, body });
      expect([path, answer.status]).toEqual([path, 502]);
      expect(redirected).toBeGreaterThan(before);
      expect(answer.text).not.toContain("of the network");
    }
    expect(asked).toBe(0);
  });

  test("follows no redirect of a trainer's endpoint", async () => {
    await ask(edge, "POST /api/models", { token: admin, body: [{ model: "m", endpoint: `${redirectingUrl}/v1` }] });
    await ask(edge, "POST /api/rollouts", { token: admin, body: [{ rollout_id: "redirected", input: {} }] });
    const before = redirected;
    const path = "/proxy/rollout/redirected/attempt/0/mode/train/openai/v1/chat/completions";
    const body = { model: "m", messages: [{ role: "user", content: "hi" }] };
    const answer = await ask(edge, `POST ${path}`, { token: admin, body });
    expect([answer.status, redirected - before]).toEqual([502, 1]);
    expectRedirectTold(answer.text);
    expect(asked).toBe(0);
  });

  test("follows no redirect of an agent", async () => {
    const agent = { policy: "flight", url: `${redirectingUrl}/run`, max_attempts: 1 };
    expect((await ask(edge, "PUT /v1/agents/elsewhere", { token: admin, body: agent })).status).toBe(200);
    const task = { id: "t", agent: "elsewhere", split: "train", input: {}, judge: null };
    await ask(edge, "POST /v1/tasks", { token: admin, body: { tasks: [task] } });
    const before = redirected;
    const rollout = { id: "ro_elsewhere", task_id: "t", agent: "elsewhere", mode: "train", max_attempts: 1 };
    expect((await ask(edge, "POST /v1/rollouts", { token: admin, body: { rollouts: [rollout] } })).status).toBe(200);
    const detail = async (): Promise<string> =>
      (await ask(edge, "GET /v1/rollouts/ro_elsewhere", { token: admin })).text;
    await expect.poll(detail, { timeout: 10_000 }).toContain("redirect");
    expect(redirected).toBeGreaterThan(before);
    expect(asked).toBe(0);
  });

  test("is told nothing by a header or a model's name where to call", async () => {
    const { token } = await edge.rollout("live");
    for (const model of [insideUrl, `provider:${insideUrl}/m`, "provider:nobody/m", "policy:flight", "../../admin"]) {
      expectNoCrash({ ...(await chat(edge, token, "hi", { model })), status: 0 });
    }
    const headers = { "x-llm-base-url": insideUrl, "x-portkey-custom-host": insideUrl, "x-upstream": insideUrl };
    await ask(edge, "POST /v1/chat/completions", {
      token,
      headers,
      body: { model: "any", base_url: insideUrl, api_base: insideUrl, messages: [{ role: "user", content: "hi" }] },
    });
    expect(asked).toBe(0);
  });
});

function expectRedirectTold(text: string): void {
  expect(text).toContain("redirect");
}

async function listening(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
