import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";

/**
 * Agents at an address that do what a script says in place of a model's reasoning: one or two calls of the policy, the
 * second a stream, and an answer that is right or wrong by a sum of what the policy said. A few of them misbehave, each
 * in a way that real ones do; which, is a function of the rollout's id.
 */
export interface ScriptedClients {
  /** For the agent's settings. */
  readonly url: string;
  /** What its tasks are judged by. */
  readonly judge: { readonly expected: string; readonly answer_pattern: string; readonly format_pattern: string };
  readonly figures: Readonly<ClientFigures>;
  stop(): Promise<void>;
}

export interface ClientFigures {
  /** Attempts that were made, and the most of them at once. */
  runs: number;
  mostAtOnce: number;
  /** Calls that were answered, and those that were not, by status. */
  calls: number;
  readonly refused: Record<number, number>;
  /** Attempts that went wrong on purpose. */
  mishaps: number;
}

/** In thousandths of all rollouts. What is `lasting` goes wrong at every attempt, the rest at the first one. */
const MISHAPS = [
  { kind: "fails", lasting: true, share: 5 },
  { kind: "fails", lasting: false, share: 10 },
  { kind: "blames upstream", lasting: true, share: 5 },
  { kind: "hangs up", lasting: false, share: 10 },
  { kind: "leaves its stream", lasting: false, share: 10 },
  { kind: "says nothing", lasting: true, share: 5 },
  { kind: "never calls", lasting: true, share: 5 },
  { kind: "hangs", lasting: false, share: 1 },
] as const;
type Mishap = (typeof MISHAPS)[number]["kind"];

/** How long an attempt may take; one that hangs takes longer. */
export const TIMEOUT_MS = 15_000;

const RESPONSE_TOKENS = 6;
const inputSchema = z.object({ input: z.object({ message: z.string() }) });
const claimsSchema = z.object({ rollout: z.object({ id: z.string() }) });
const answerSchema = z.object({
  choices: z.array(z.object({ message: z.object({ content: z.string().nullable() }) })),
});

export async function startScriptedClients(): Promise<ScriptedClients> {
  const figures: ClientFigures = { runs: 0, mostAtOnce: 0, calls: 0, refused: {}, mishaps: 0 };
  const met = new Set<string>();
  const over = new AbortController();
  let atOnce = 0;

  async function attempt(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { input } = inputSchema.parse(JSON.parse(await bodyOf(request)));
    const key = request.headers.authorization?.replace("Bearer ", "") ?? "";
    const call = caller(`${String(request.headers["x-llm-base-url"])}/chat/completions`, key, figures);
    const { id } = claimsSchema.parse(JSON.parse(Buffer.from(key.split(".")[1] ?? "", "base64url").toString())).rollout;
    const mishap = mishapOf(id, met.has(id));
    if (mishap !== undefined) {
      met.add(id);
      figures.mishaps += 1;
    }
    if (mishap === "never calls") return answer(response, "yes");
    const first = { role: "user", content: input.message };
    const said = await call([first]);
    if (mishap === "hangs up") return void response.destroy();
    if (mishap === "says nothing") return answer(response, null);
    if (mishap === "fails") return refuse(response, "agent_failed");
    if (mishap === "blames upstream") return refuse(response, "upstream_failed");
    if (mishap === "hangs") {
      await pause(2 * TIMEOUT_MS, undefined, { signal: over.signal }).catch(() => undefined);
      return void response.destroy();
    }
    let sum = sumOf(said);
    if (mishap === "leaves its stream" || sum % 3 === 0) {
      const messages = [first, { role: "assistant", content: said }, { role: "user", content: "Go on." }];
      sum += await call(messages, mishap === "leaves its stream" ? "left" : "read").then(sumOf);
    }
    answer(response, sum % 2 === 0 ? "yes" : "no");
  }

  const server = createServer((request, response) => {
    figures.runs += 1;
    atOnce += 1;
    figures.mostAtOnce = Math.max(figures.mostAtOnce, atOnce);
    void attempt(request, response)
      .catch(() => refuse(response, "upstream_failed"))
      .finally(() => (atOnce -= 1));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/run`,
    judge: { expected: "yes", answer_pattern: "^(yes|no)$", format_pattern: "yes|no" },
    figures,
    stop: () =>
      new Promise((resolve) => {
        over.abort();
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** Calls the policy and returns what it said; a stream may be left after its first piece. */
function caller(url: string, key: string, figures: ClientFigures) {
  return async (messages: readonly object[], stream?: "read" | "left"): Promise<string> => {
    const response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
      body: JSON.stringify({
        model: "any",
        messages,
        max_tokens: RESPONSE_TOKENS,
        ...(stream === undefined ? {} : { stream: true }),
      }),
    });
    if (!response.ok) {
      figures.refused[response.status] = (figures.refused[response.status] ?? 0) + 1;
      throw new Error(`the edge answered ${response.status}: ${await response.text()}`);
    }
    figures.calls += 1;
    if (stream === "left") {
      const reader = response.body?.getReader();
      await reader?.read();
      await reader?.cancel();
      return "";
    }
    const text = await response.text();
    return stream === "read" ? text : (answerSchema.parse(JSON.parse(text)).choices[0]?.message.content ?? "");
  };
}

function mishapOf(rolloutId: string, again: boolean): Mishap | undefined {
  let place = hashOf(rolloutId) % 1000;
  for (const { kind, lasting, share } of MISHAPS) {
    if (place < share) return again && !lasting ? undefined : kind;
    place -= share;
  }
  return undefined;
}

/** FNV-1a. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(text)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash;
}

function sumOf(text: string): number {
  return Buffer.from(text).reduce((total, byte) => total + byte, 0);
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString("utf8");
}

function answer(response: ServerResponse, result: string | null): void {
  response.setHeader("content-type", "application/json").end(JSON.stringify({ result }));
}

function refuse(response: ServerResponse, reason: string): void {
  if (response.destroyed) return;
  response.statusCode = 502;
  response.setHeader("content-type", "application/json").end(JSON.stringify({ error: { message: "no", reason } }));
}
