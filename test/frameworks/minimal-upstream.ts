import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { STRUCTURED } from "./framework.ts";

/**
 * A chat endpoint that answers as little as can be understood: no ids, no object, no model, no index, no finish reason,
 * no usage, no role. It knows nothing but chat completions, and takes a tool's result for the end of the run.
 */
export interface MinimalUpstream {
  readonly url: string;
  readonly requests: { readonly path: string; readonly headers: IncomingMessage["headers"]; readonly body: Asked }[];
  /** How many tools it calls at once. */
  callsAtOnce: number;
  stop(): Promise<void>;
}

export interface MinimalUpstreamOptions {
  /** Heeds neither the path nor `stream`: whatever is asked, its answer is a chat's, in one piece. */
  readonly isHeedless?: boolean;
}

/** What of a chat request these tests look at. */
export interface Asked {
  readonly model?: string;
  readonly stream?: boolean;
  readonly response_format?: { readonly json_schema?: { readonly schema?: unknown } };
  readonly messages?: readonly { readonly role: string }[];
  readonly tools?: readonly { readonly function: { readonly name: string; readonly parameters?: unknown } }[];
}

/** The AI SDK gives Anthropic's models that it does not know a tool of this name in place of an output format. */
export const FORM_TOOL = "json";

export function hasFormTool(tools: unknown): boolean {
  // Of a request in another dialect, tools have no `function`.
  return (
    Array.isArray(tools) && tools.some((tool: { function?: { name?: string } }) => tool.function?.name === FORM_TOOL)
  );
}

interface Message {
  readonly content?: string;
  readonly tool_calls?: readonly { readonly function: { readonly name?: string; readonly arguments: string } }[];
}

export async function startMinimalUpstream({
  isHeedless = false,
}: MinimalUpstreamOptions = {}): Promise<MinimalUpstream> {
  const requests: MinimalUpstream["requests"] = [];
  const settings = { callsAtOnce: 1 };
  const server = createServer((request, response) => {
    void (async () => {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const body = JSON.parse(Buffer.concat(pieces).toString("utf8") || "{}") as Asked;
      requests.push({ path: request.url ?? "", headers: request.headers, body });
      if (request.url !== "/v1/chat/completions" && !isHeedless) return void response.writeHead(404).end("not here");
      if (body.stream !== true || isHeedless) {
        return void response
          .writeHead(200, { "content-type": "application/json" })
          .end(JSON.stringify({ choices: [{ message: messageFor(body, settings) }] }));
      }
      response.writeHead(200, { "content-type": "text/event-stream" });
      for (const delta of deltasOf(messageFor(body, settings))) {
        response.write(`data: ${JSON.stringify({ choices: [{ delta }] })}\n\n`);
      }
      response.end("data: [DONE]\n\n");
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    requests,
    get callsAtOnce() {
      return settings.callsAtOnce;
    },
    set callsAtOnce(calls) {
      settings.callsAtOnce = calls;
    },
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

const CALL = { function: { name: "calculator", arguments: '{"a":17,"b":25}' } };

function messageFor(body: Asked, { callsAtOnce }: Pick<MinimalUpstream, "callsAtOnce">): Message {
  const form = JSON.stringify(STRUCTURED);
  if (body.response_format !== undefined) return { content: form };
  if (hasFormTool(body.tools)) return { tool_calls: [{ function: { name: FORM_TOOL, arguments: form } }] };
  const answered = body.messages?.some(({ role }) => role === "tool") === true;
  return answered ? { content: "The sum is 42." } : { tool_calls: Array.from({ length: callsAtOnce }, () => CALL) };
}

/** A message in pieces; the second piece of a call says nothing of which it belongs to. */
function deltasOf({ content = "", tool_calls: calls }: Message): Message[] {
  if (calls === undefined) return [{ content: content.slice(0, 8) }, { content: content.slice(8) }];
  return calls.flatMap(({ function: { name, arguments: text } }) => [
    { tool_calls: [{ function: { ...(name === undefined ? {} : { name }), arguments: text.slice(0, 8) } }] },
    { tool_calls: [{ function: { arguments: text.slice(8) } }] },
  ]);
}
