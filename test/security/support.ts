import { connect } from "node:net";
import { expect } from "vitest";
import { errorBodySchema } from "#shared/wire.ts";
import type { TestEdge } from "../support/edge.ts";

/** What the security tests send and how they look at what comes back. */

export interface Answered {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

export interface Asking {
  /** Sent as a bearer token. */
  readonly token?: string;
  /** A text is sent as it is, anything else as JSON. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** One request, its answer read to the end. */
export async function ask(edge: TestEdge, route: string, asking: Asking = {}): Promise<Answered> {
  const { token, body, headers, signal } = asking;
  const space = route.indexOf(" ");
  const response = await fetch(`${edge.url}${route.slice(space + 1)}`, {
    method: route.slice(0, space),
    redirect: "manual",
    headers: {
      ...(body === undefined ? {} : { "content-type": "application/json" }),
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...headers,
    },
    ...(body === undefined
      ? {}
      : { body: typeof body === "string" || body instanceof Uint8Array ? body : JSON.stringify(body) }),
    ...(signal === undefined ? {} : { signal }),
  });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

/** What an error must not show: stack frames, file names, the libraries that threw, SQL. */
const INNER = /\n\s+at |\.(ts|mjs|js):\d|node_modules|jose|ERR_JW|ZodError|drizzle|libsql|sqlite|select .+ from /i;

/** Asserts a clear refusal: one of these statuses, the body that SDKs read, nothing of the inside. */
export function expectRefusal(answer: Answered, ...statuses: number[]): void {
  expectOf(statuses, answer.text.slice(0, 300)).toContain(answer.status);
  const { error } = errorBodySchema.strict().parse(JSON.parse(answer.text));
  expect(error.message).not.toMatch(INNER);
  expect(error.message.length).toBeGreaterThan(10);
}

/** As {@link expectRefusal} for a request that reached no handler: a wrong one is an answer all the same, and never a 5xx. */
export function expectNoCrash(answer: Answered): void {
  expectOf(answer.status, answer.text.slice(0, 300)).toBeLessThan(500);
  expect(answer.text).not.toMatch(INNER);
}

/**
 * Bytes through a plain TCP socket, for what no HTTP client sends; what came back until the server closed, or was silent
 * for `quietMs` after its first bytes.
 */
export function raw(
  edge: TestEdge,
  bytes: string | Uint8Array,
  { quietMs = 150, waitMs = 5000 } = {},
): Promise<string> {
  const { hostname, port } = new URL(edge.url);
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname, () => socket.write(bytes));
    let text = "";
    let timer = setTimeout(() => socket.destroy(), waitMs);
    socket.setEncoding("latin1");
    socket.on("data", (piece: string) => {
      text += piece;
      clearTimeout(timer);
      timer = setTimeout(() => socket.destroy(), quietMs);
    });
    socket.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code !== "ECONNRESET" && error.code !== "EPIPE") reject(error);
    });
    socket.on("close", () => {
      clearTimeout(timer);
      resolve(text);
    });
  });
}

/** The statuses of the HTTP answers in a connection's bytes. */
export function statusesOf(text: string): number[] {
  return [...text.matchAll(/HTTP\/1\.1 (\d{3})/g)].map((match) => Number(match[1]));
}

/** Whether the edge still serves, and what it builds has no field that came out of nowhere: to be {@link HEALTHY}. */
export async function healthOf(edge: TestEdge): Promise<unknown> {
  const health = await ask(edge, "GET /healthz");
  const refused = await ask(edge, "GET /v1/policies");
  const { error, ...more } = JSON.parse(refused.text) as { error: object };
  return { health: JSON.parse(health.text) as unknown, refused: refused.status, fields: Object.keys(error), more };
}

export const HEALTHY = {
  health: { ok: true, status: "ok" },
  refused: 401,
  fields: ["message", "type", "param", "code"],
  more: {},
};

/** A rollout's chat call. */
export function chat(edge: TestEdge, token: string, content: unknown = "hi", extra: object = {}): Promise<Answered> {
  const body = { model: "any", messages: [{ role: "user", content }], ...extra };
  return ask(edge, "POST /v1/chat/completions", { token, body });
}

/** `expect`, with what it is about for its message. */
export function expectOf<T>(value: T, about: string) {
  // oxlint-disable-next-line vitest/valid-expect -- vitest takes a message as well
  return expect(value, about);
}
