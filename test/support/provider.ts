import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** A frozen upstream that answers what a test tells it to. */
export interface MockProvider {
  /** With `/v1`. */
  readonly baseUrl: string;
  readonly requests: ProviderRequest[];
  /** Answers the coming requests. */
  answer: (request: ProviderRequest, response: ServerResponse) => void;
  stop(): Promise<void>;
}

export interface ProviderRequest {
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: { readonly model?: string; readonly stream?: boolean; readonly [field: string]: unknown };
}

export async function startMockProvider(): Promise<MockProvider> {
  const requests: ProviderRequest[] = [];
  const mock: Pick<MockProvider, "answer"> = { answer: (_request, response) => void response.writeHead(404).end() };
  const server = createServer((request, response) => {
    void (async () => {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const body = JSON.parse(Buffer.concat(pieces).toString("utf8") || "{}") as ProviderRequest["body"];
      const seen = { path: request.url ?? "", headers: request.headers, body };
      requests.push(seen);
      mock.answer(seen, response);
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    baseUrl: `http://127.0.0.1:${port}/v1`,
    requests,
    get answer() {
      return mock.answer;
    },
    set answer(next) {
      mock.answer = next;
    },
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** Answers with JSON. */
export function json(response: ServerResponse, body: unknown, status = 200): void {
  response.writeHead(status, { "content-type": "application/json", "x-request-id": "req_theirs" });
  response.end(JSON.stringify(body));
}

/** Answers with server-sent events of these data. */
export function events(response: ServerResponse, data: readonly (object | string)[]): void {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const each of data) response.write(`data: ${typeof each === "string" ? each : JSON.stringify(each)}\n\n`);
  response.end();
}
