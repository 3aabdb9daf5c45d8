import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";

/**
 * A chat endpoint that answers as little as can be understood: no ids, no object, no model, no index, no finish reason,
 * no usage, no role. It knows nothing but chat completions, and takes a tool's result for the end of the run.
 */
export interface MinimalUpstream {
  readonly url: string;
  readonly requests: { readonly path: string; readonly headers: IncomingMessage["headers"]; readonly body: Body }[];
  stop(): Promise<void>;
}

interface Body {
  readonly model?: string;
  readonly stream?: boolean;
  readonly messages?: readonly { readonly role: string }[];
}

const CALL = { function: { name: "calculator", arguments: '{"a":17,"b":25}' } };

export async function startMinimalUpstream(): Promise<MinimalUpstream> {
  const requests: MinimalUpstream["requests"] = [];
  const server = createServer((request, response) => {
    void (async () => {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const body = JSON.parse(Buffer.concat(pieces).toString("utf8") || "{}") as Body;
      requests.push({ path: request.url ?? "", headers: request.headers, body });
      if (request.url !== "/v1/chat/completions") return void response.writeHead(404).end("not here");
      const answered = body.messages?.some(({ role }) => role === "tool") === true;
      if (body.stream !== true) {
        const message = answered ? { content: "The sum is 42." } : { tool_calls: [CALL] };
        return void response
          .writeHead(200, { "content-type": "application/json" })
          .end(JSON.stringify({ choices: [{ message }] }));
      }
      const deltas = answered
        ? [{ content: "The sum " }, { content: "is " }, { content: "42." }]
        : [
            { tool_calls: [{ function: { name: "calculator", arguments: '{"a":17,' } }] },
            { tool_calls: [{ function: { arguments: '"b":25}' } }] },
          ];
      response.writeHead(200, { "content-type": "text/event-stream" });
      for (const delta of deltas) response.write(`data: ${JSON.stringify({ choices: [{ delta }] })}\n\n`);
      response.end("data: [DONE]\n\n");
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    requests,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
