import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/**
 * An endpoint in the vLLM dialect that answers what it is told to, for tests of the edge and its benchmark: it can be
 * slow, wrong, or away, which the real one cannot be asked to be.
 */
export interface MockInference {
  readonly url: string;
  /** The bodies of all requests so far. */
  readonly requests: MockRequest[];
  /** How the coming requests are answered. */
  answer: MockAnswer;
  /** Resolves when a client has left before its answer ended. */
  readonly nextHangUp: () => Promise<void>;
  stop(): Promise<void>;
}

export interface MockRequest {
  readonly model: string;
  readonly stream?: boolean;
  readonly [field: string]: unknown;
}

/** What one request gets; called with its number, from 1. */
export type MockAnswer = (request: MockRequest, number: number) => MockReply | Promise<MockReply>;

export interface MockReply {
  /** Other than 200: an error with this status. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly error?: string;
  /** Drops the connection instead of answering. */
  readonly drop?: boolean;
  /** Text of each token. */
  readonly tokens?: readonly string[];
  readonly toolCalls?: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  /** Instead of the model that was asked for. */
  readonly model?: string;
  /** Leaves the token ids out. */
  readonly withoutIds?: boolean;
  /** Stops a stream after so many chunks: the connection drops, or stays silent. */
  readonly breakAfter?: number;
  readonly silentAfter?: number;
}

export const PROMPT_IDS = [1, 2, 3, 4, 5];

export async function startMockInference(
  answer: MockAnswer = () => ({ tokens: ["Hello", " world"] }),
): Promise<MockInference> {
  const requests: MockRequest[] = [];
  let hungUp = Promise.withResolvers<void>();
  const mock = { answer };
  const server = createServer((request, response) => {
    void (async () => {
      const body = await readBody(request);
      if (request.url === "/v1/models") return void response.end('{"object":"list","data":[]}');
      const parsed: unknown = JSON.parse(body);
      if (!isRequest(parsed)) return void response.writeHead(400).end();
      requests.push(parsed);
      response.on("close", () => {
        if (response.writableEnded) return;
        hungUp.resolve();
        hungUp = Promise.withResolvers<void>();
      });
      reply(parsed, response, await mock.answer(parsed, requests.length));
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    requests,
    get answer() {
      return mock.answer;
    },
    set answer(next) {
      mock.answer = next;
    },
    nextHangUp: () => hungUp.promise,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function isRequest(value: unknown): value is MockRequest {
  return typeof value === "object" && value !== null && "model" in value && typeof value.model === "string";
}

async function readBody(request: IncomingMessage): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return Buffer.concat(pieces).toString("utf8");
}

function reply(request: MockRequest, response: ServerResponse, given: MockReply): void {
  if (given.drop === true) return void response.destroy();
  if (given.status !== undefined && given.status !== 200) {
    response.writeHead(given.status, { "content-type": "application/json", ...given.headers });
    return void response.end(
      JSON.stringify({ error: { message: given.error ?? "mock", type: "x", code: given.status } }),
    );
  }
  if (request.stream === true) stream(request, response, given);
  else response.writeHead(200, { "content-type": "application/json" }).end(wholeAnswer(request, given));
}

const logprobOf = (at: number): number => -0.5 - at / 100;

/** What vLLM answers to `logprobs: true, return_token_ids: true`. */
export function wholeAnswer(request: MockRequest, given: MockReply): string {
  const { tokens = [], toolCalls } = given;
  const withIds = given.withoutIds !== true;
  return JSON.stringify({
    id: "chatcmpl-mock",
    object: "chat.completion",
    created: 1,
    model: given.model ?? request.model,
    choices: [
      {
        index: 0,
        message: {
          role: "assistant",
          content: toolCalls === undefined ? tokens.join("") : null,
          tool_calls: toolCalls?.map(({ id, ...called }) => ({ id, type: "function", function: called })) ?? [],
        },
        logprobs: {
          content: tokens.map((token, at) => ({ token, logprob: logprobOf(at), bytes: null, top_logprobs: [] })),
        },
        finish_reason: toolCalls === undefined ? "stop" : "tool_calls",
        ...(withIds ? { token_ids: tokens.map((_, at) => 100 + at) } : {}),
      },
    ],
    usage: {
      prompt_tokens: PROMPT_IDS.length,
      completion_tokens: tokens.length,
      total_tokens: PROMPT_IDS.length + tokens.length,
    },
    ...(withIds ? { prompt_token_ids: PROMPT_IDS } : {}),
  });
}

/** The events of the same answer as a stream, one a token. */
export function streamEvents(request: MockRequest, given: MockReply): string[] {
  const { tokens = [], toolCalls } = given;
  const withIds = given.withoutIds !== true;
  const base = {
    id: "chatcmpl-mock",
    object: "chat.completion.chunk",
    created: 1,
    model: given.model ?? request.model,
  };
  const chunk = (choice: object, extra: object = {}): string =>
    `data: ${JSON.stringify({ ...base, ...extra, choices: [{ index: 0, ...choice }] })}\n\n`;
  const events = [
    chunk(
      { delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null },
      withIds ? { prompt_token_ids: PROMPT_IDS } : {},
    ),
    ...tokens.map((token, at) =>
      chunk({
        delta:
          toolCalls === undefined
            ? { content: token }
            : at === 0
              ? {
                  tool_calls: toolCalls.map(({ id, ...called }, index) => ({
                    index,
                    id,
                    type: "function",
                    function: called,
                  })),
                }
              : {},
        logprobs: { content: [{ token, logprob: logprobOf(at), bytes: null, top_logprobs: [] }] },
        finish_reason: at === tokens.length - 1 ? (toolCalls === undefined ? "stop" : "tool_calls") : null,
        ...(withIds ? { token_ids: [100 + at] } : {}),
      }),
    ),
  ];
  const usage = { prompt_tokens: PROMPT_IDS.length, completion_tokens: tokens.length, total_tokens: 0 };
  return [...events, `data: ${JSON.stringify({ ...base, choices: [], usage })}\n\n`, "data: [DONE]\n\n"];
}

function stream(request: MockRequest, response: ServerResponse, given: MockReply): void {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const cut = given.breakAfter ?? given.silentAfter;
  const events = streamEvents(request, given).slice(0, cut);
  for (const event of events.slice(0, -1)) response.write(event);
  response.write(events.at(-1) ?? "", () => {
    // Only what was written is lost with the connection.
    if (given.breakAfter !== undefined) response.destroy();
    else if (given.silentAfter === undefined) response.end();
  });
}
