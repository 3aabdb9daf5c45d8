import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { sql } from "drizzle-orm";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { startTestEdge, type TestEdge } from "../support/edge.ts";
import { newLedger, NOTHING_WRONG } from "../support/ledger.ts";
import { streamEvents, wholeAnswer } from "../support/mock-inference.ts";
import { seeded } from "../support/seed.ts";
import { until } from "../support/until.ts";

/**
 * An upstream that resets, refuses, stops in the middle and talks nonsense, and clients that leave at each chunk: every call
 * that was sent upstream has one record, which says what its client was told.
 */

const CALLS = 120;
const AT_ONCE = 8;
const TOKENS = [".1", ".2", ".3", ".4", ".5", ".6"];
/** What the edge asks at most. */
const ATTEMPTS = 4;

/** What one attempt meets. The `late` ones come after the headers, where a stream cannot be asked for again. */
const FAULTS = {
  reset: { late: false, status: 502 },
  status500: { late: false, status: 502 },
  status429: { late: false, status: 429 },
  empty: { late: true, status: 502 },
  garbage: { late: true, status: 502 },
  cut: { late: true, status: 502 },
} as const;
type Fault = keyof typeof FAULTS;
const NAMES = Object.keys(FAULTS) as [Fault, ...Fault[]];

interface Plan {
  readonly nonce: string;
  readonly stream: boolean;
  /** One for each attempt from the first; whoever comes after them is answered. */
  readonly faults: readonly Fault[];
  /** Of a cut answer: how much of it comes. */
  readonly share: number;
}

const upstreamRequest = z.looseObject({
  model: z.string(),
  stream: z.boolean().optional(),
  messages: z.array(z.looseObject({ content: z.string() })),
});
type UpstreamRequest = z.infer<typeof upstreamRequest>;

/** What each nonce's next attempt gets. */
const scripts = new Map<string, (request: UpstreamRequest, response: ServerResponse) => void>();
const upstream = createServer((incoming, response) => {
  void (async () => {
    const pieces: Buffer[] = [];
    for await (const piece of incoming) pieces.push(piece as Buffer);
    const request = upstreamRequest.parse(JSON.parse(Buffer.concat(pieces).toString("utf8")));
    const script = scripts.get(request.messages[0]?.content ?? "");
    if (script === undefined) return void response.writeHead(404).end();
    script(request, response);
  })();
});

let edge: TestEdge;
beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", resolve));
  const { port } = upstream.address() as AddressInfo;
  edge = await startTestEdge({ inferenceUrl: `http://127.0.0.1:${port}` });
});
afterAll(async () => {
  await edge.stop();
  upstream.close();
  upstream.closeAllConnections();
});

describe("an upstream that fails", () => {
  it(
    "costs no record: each call is answered, or told what went wrong, and its one record says the same",
    { timeout: 120_000 },
    async () => {
      const { random, below, pick } = seeded("upstream");
      const ledger = newLedger();
      const { token } = await edge.rollout("live", { caps: { maxCalls: 10_000, maxTokens: 1_000_000 } });
      const plans = Array.from({ length: CALLS }, (_, number): Plan => {
        const faults = Array.from({ length: below(ATTEMPTS + 1) }, () => pick(NAMES));
        return { nonce: `upstream-${number}`, stream: below(2) === 0, faults, share: random() };
      });
      const told = new Map<string, Told>();
      const queue = [...plans];
      const client = async (): Promise<void> => {
        for (let plan = queue.shift(); plan !== undefined; plan = queue.shift()) {
          script(plan);
          ledger.asked(plan.nonce);
          const got = await callOnce(token, plan);
          told.set(plan.nonce, got);
          if (got.status === 200 && got.id !== undefined) ledger.call(got.id, plan.nonce);
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, client));

      const records = await recordsOf("upstream-%");
      const byNonce = new Map(records.map((record) => [record.nonce, record]));
      for (const plan of plans) {
        const expected = expectedOf(plan);
        const { status, id: _id, retryAfter } = told.get(plan.nonce) ?? { status: 0, id: undefined, retryAfter: null };
        expect({ plan, status }).toEqual({ plan, status: expected.status });
        if (status === 429) expect(retryAfter).toBe("1");
        const record = byNonce.get(plan.nonce);
        expect({ plan, ...record }).toMatchObject({
          plan,
          http_status: expected.status,
          upstream_attempts: expected.attempts,
          trainable: expected.status === 200 ? 1 : 0,
          error: expected.status === 200 ? null : expect.stringMatching(/./),
        });
      }
      expect(await ledger.audit(edge.store.db)).toEqual(NOTHING_WRONG);
      const whole = [...told.values()].filter(({ status }) => status === 200).length;
      console.log(`upstream: ${CALLS} calls, ${whole} answered, ${records.length} records`);
      expect(ledger.acknowledged.calls).toBe(whole);
      expect(Math.min(whole, CALLS - whole)).toBeGreaterThan(5);
    },
  );

  it("that asks for more patience than a call has is not waited for: its client is told how long", async () => {
    const { token } = await edge.rollout("live");
    scripts.set("patience", (_request, response) => void response.writeHead(429, { "retry-after": "30" }).end("{}"));
    const startedAt = performance.now();
    const got = await callOnce(token, { nonce: "patience", stream: false, faults: [], share: 0 });
    expect(got).toMatchObject({ status: 429, retryAfter: "30" });
    expect(performance.now() - startedAt).toBeLessThan(5000);
    expect(await recordsOf("patience")).toMatchObject([{ http_status: 429, upstream_attempts: 1, trainable: 0 }]);
  });
});

describe("a client that leaves", () => {
  it(
    "at each chunk of a stream leaves one record, which says so and has all that was sent to it",
    { timeout: 60_000 },
    async () => {
      const { token } = await edge.rollout("live", { caps: { maxCalls: 100, maxTokens: 1_000_000 } });
      await Promise.all(
        // Of the events of an answer: the role and the tokens. The last token's is held back until the record is committed.
        Array.from({ length: TOKENS.length + 1 }, async (_, chunk) => {
          const nonce = `leaves-${chunk}`;
          const streamEnded = Promise.withResolvers<void>();
          scripts.set(nonce, ({ model }, response) => {
            response.writeHead(200, { "content-type": "text/event-stream" });
            response.on("close", () => streamEnded.resolve());
            for (const event of streamEvents({ model }, { tokens: TOKENS }).slice(0, chunk + 1)) response.write(event);
          });
          const leave = new AbortController();
          const response = await post(token, { nonce, stream: true }, leave.signal);
          // Of a burst the proxy holds back what comes after the first pieces, until more comes (burst-reader.ts).
          const seen = await readUntil(response, TOKENS[Math.min(chunk, 3) - 1] ?? "role");
          leave.abort();
          // What the upstream has not sent yet is not worth computing.
          await streamEnded.promise;
          const [record, ...more] = await recorded(nonce);
          expect(more).toEqual([]);
          expect(record).toMatchObject({ http_status: 499, error: "client_disconnected", trainable: 0 });
          const content = record?.content ?? "";
          expect(TOKENS.slice(0, chunk).join("")).toContain(content);
          expect(record?.completion_tokens).toBe(TOKENS.filter((each) => content.includes(each)).length);
          expect(TOKENS.filter((each) => seen.includes(`${each}"`) && !content.includes(each))).toEqual([]);
        }),
      );
    },
  );

  it("when everything has come leaves a whole record", async () => {
    const { token } = await edge.rollout("live");
    const nonce = "leaves-at-the-end";
    scripts.set(nonce, (request, response) => answer(request, response));
    const leave = new AbortController();
    const response = await post(token, { nonce, stream: true }, leave.signal);
    const reader = response.body?.getReader();
    await reader?.read();
    leave.abort();
    const [record, ...more] = await recorded(nonce);
    expect(more).toEqual([]);
    expect(record).toMatchObject({ http_status: 200, error: null, completion_tokens: TOKENS.length });
  });

  it("before an answer that comes whole leaves a record of what it would have got", async () => {
    const { token } = await edge.rollout("live");
    const nonce = "leaves-before";
    const asked = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    scripts.set(nonce, (request, response) => {
      asked.resolve();
      void goOn.promise.then(() => answer(request, response));
    });
    const leave = new AbortController();
    const gone = post(token, { nonce, stream: false }, leave.signal).catch(() => "gone");
    await asked.promise;
    leave.abort();
    expect(await gone).toBe("gone");
    goOn.resolve();
    const records = await recorded(nonce);
    expect(records).toHaveLength(1);
    // Production tells of the client's end at once, local workerd only where something is written to it.
    expect([200, 499]).toContain(records[0]?.http_status);
  });
});

interface Told {
  /** Of a stream that failed on its way: the status of its error, as the record has it. */
  readonly status: number;
  readonly id: string | undefined;
  readonly retryAfter: string | null;
}

/** What a plan comes to: the first attempt that no fault meets, or that a stream's late one does. */
function expectedOf({ stream, faults }: Plan): { status: number; attempts: number } {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const fault = faults[attempt - 1];
    if (fault === undefined) return { status: 200, attempts: attempt };
    if ((stream && FAULTS[fault].late) || attempt === ATTEMPTS)
      return { status: FAULTS[fault].status, attempts: attempt };
  }
  throw new Error("there is no such plan");
}

function script({ nonce, faults, share }: Plan): void {
  let attempt = 0;
  scripts.set(nonce, (request, response) => {
    const fault = faults[attempt++];
    if (fault === undefined) answer(request, response);
    else fail(fault, { request, response, share });
  });
}

function answer(request: UpstreamRequest, response: ServerResponse): void {
  const type = request.stream === true ? "text/event-stream" : "application/json";
  response.writeHead(200, { "content-type": type }).end(textOf(request));
}

function textOf({ model, stream }: UpstreamRequest): string {
  return stream === true
    ? streamEvents({ model }, { tokens: TOKENS }).join("")
    : wholeAnswer({ model }, { tokens: TOKENS });
}

interface Failing {
  readonly request: UpstreamRequest;
  readonly response: ServerResponse;
  readonly share: number;
}

function fail(fault: Fault, { request, response, share }: Failing): void {
  const type = { "content-type": request.stream === true ? "text/event-stream" : "application/json" };
  const text = textOf(request);
  const happen: Record<Fault, () => void> = {
    reset: () => void response.socket?.resetAndDestroy(),
    status500: () => void response.writeHead(500).end('{"error":{"message":"broken"}}'),
    status429: () => void response.writeHead(429, { "retry-after": "0" }).end('{"error":{"message":"busy"}}'),
    empty: () => void response.writeHead(200, type).end(),
    garbage: () =>
      void response.writeHead(200, type).end(request.stream === true ? "data: {no\n\ndata: json\n\n" : "<html>"),
    cut() {
      response.writeHead(200, type);
      // Never the whole: without its last events a stream is not one.
      response.write(text.slice(0, Math.floor(share * (text.length - 20))), () => response.socket?.resetAndDestroy());
      response.flushHeaders();
    },
  };
  happen[fault]();
}

function post(token: string, { nonce, stream }: Pick<Plan, "nonce" | "stream">, signal = AbortSignal.timeout(60_000)) {
  return fetch(`${edge.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
    body: JSON.stringify({ model: "any", stream, messages: [{ role: "user", content: nonce }] }),
    signal,
  });
}

const errorStatus: Readonly<Record<string, number>> = { ERR_UPSTREAM: 502, ERR_OVERLOADED: 429 };

async function callOnce(token: string, plan: Plan): Promise<Told> {
  const response = await post(token, plan);
  const text = await response.text();
  const error = /"code":"(ERR_\w+)"/.exec(text)?.[1];
  const isWhole = response.ok && error === undefined && (!plan.stream || text.endsWith("data: [DONE]\n\n"));
  return {
    status:
      response.ok && error !== undefined ? (errorStatus[error] ?? 0) : isWhole || !response.ok ? response.status : 0,
    id: isWhole ? /"id":"(ca_\w+)"/.exec(text)?.[1] : undefined,
    retryAfter: response.headers.get("retry-after"),
  };
}

/** Reads a stream until it has a text; gives all that came. */
async function readUntil(response: Response, text: string): Promise<string> {
  const decoder = new TextDecoder();
  let seen = "";
  for await (const piece of response.body ?? []) {
    seen += decoder.decode(piece, { stream: true });
    if (seen.includes(text)) return seen;
  }
  throw new Error(`the stream ended without ${text}: ${seen}`);
}

/** What was recorded of a call, once there is something. */
function recorded(nonce: string) {
  return until(`the record of ${nonce}`, async () => {
    const found = await recordsOf(nonce);
    return found.length > 0 && found;
  });
}

const recordRows = z.array(
  z.object({
    nonce: z.string(),
    http_status: z.number(),
    error: z.string().nullable(),
    trainable: z.number(),
    upstream_attempts: z.number(),
    completion_tokens: z.number(),
    content: z.string().nullable(),
  }),
);

async function recordsOf(nonceLike: string) {
  return recordRows.parse(
    await edge.store.db.all(sql`select request ->> '$.messages[0].content' as nonce, http_status, error, trainable,
      upstream_attempts, completion_tokens, response ->> '$.content' as content
      from calls where nonce like ${nonceLike}`),
  );
}
