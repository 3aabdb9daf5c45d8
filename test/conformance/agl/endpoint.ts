import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Loose } from "./client.ts";

/** A trainer's inference endpoint that answers what it is told to. */
export interface TestEndpoint {
  /** With `/v1`. */
  readonly base: string;
  readonly requests: EndpointRequest[];
  /** How the coming requests are answered. */
  answer: (request: EndpointRequest) => EndpointReply | Promise<EndpointReply>;
  /** Resolves when so many requests have come. */
  readonly came: (count: number) => Promise<void>;
  stop(): Promise<void>;
}

export interface EndpointRequest {
  readonly path: string;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: Loose;
}

export interface EndpointReply {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: unknown;
}

export const CHAT_ANSWER = {
  id: "chatcmpl-1",
  object: "chat.completion",
  created: 1,
  model: "served",
  choices: [
    {
      index: 0,
      message: { role: "assistant", content: "Hello there" },
      logprobs: {
        content: [
          { token: "Hello", logprob: -0.5 },
          { token: " there", logprob: -0.25 },
        ],
      },
      finish_reason: "stop",
      token_ids: [11, 12],
    },
  ],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
  prompt_token_ids: [1, 2, 3],
};

export const COMPLETION_ANSWER = {
  id: "cmpl-1",
  object: "text_completion",
  created: 1,
  model: "served",
  choices: [
    {
      index: 0,
      text: "Hello there",
      logprobs: { tokens: ["Hello", " there"], token_logprobs: [-0.5, -0.25] },
      finish_reason: "length",
      token_ids: [11, 12],
      prompt_token_ids: [1, 2, 3],
    },
  ],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
};

export async function startTestEndpoint(): Promise<TestEndpoint> {
  const requests: EndpointRequest[] = [];
  const waiting: { readonly count: number; readonly resolve: () => void }[] = [];
  const endpoint = {
    answer: ({ path }: EndpointRequest): EndpointReply | Promise<EndpointReply> => ({
      body: path.endsWith("/chat/completions") ? CHAT_ANSWER : COMPLETION_ANSWER,
    }),
  };
  const server = createServer((incoming, response) => {
    let text = "";
    incoming.setEncoding("utf8");
    incoming.on("data", (piece: string) => (text += piece));
    incoming.on("end", () => {
      const request = { path: incoming.url ?? "", headers: incoming.headers, body: JSON.parse(text) };
      requests.push(request);
      for (const { count, resolve } of waiting) if (requests.length >= count) resolve();
      void Promise.resolve(endpoint.answer(request)).then((reply) => give(response, reply));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    base: `http://127.0.0.1:${portOf(server)}/v1`,
    requests,
    get answer() {
      return endpoint.answer;
    },
    set answer(next) {
      endpoint.answer = next;
    },
    came: (count) =>
      new Promise((resolve) => {
        if (requests.length >= count) resolve();
        else waiting.push({ count, resolve });
      }),
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function give(response: ServerResponse, { status = 200, headers = {}, body }: EndpointReply): void {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(typeof body === "string" ? body : JSON.stringify(body));
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}
