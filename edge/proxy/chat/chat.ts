import type { Json } from "../answer.ts";
import { readText } from "../body.ts";
import { ask, record, routeOf, type Call, type ProxyDeps } from "../call.ts";
import { oneAnswer, readChatRequest } from "./request.ts";
import { chatRewriter } from "./stream.ts";
import { handle, type Answered } from "../handle.ts";
import { providerCall } from "../provider/provider.ts";
import { streamed } from "../stream.ts";
import { readAnswer, takeWhole } from "../whole-answer.ts";

/**
 * `POST /v1/chat/completions`, streaming or not: the policy's version is resolved and asked by name, the call is
 * recorded, and only then does the answer's last byte leave.
 */
export async function chatCompletions(deps: ProxyDeps, request: Request): Promise<Response> {
  const startedAt = deps.now();
  const requestText = await readText(request, deps);
  const chat = readChatRequest(requestText);
  const caller = await deps.callerOf(request, chat);
  const route = await routeOf(deps, caller, chat.model);
  if (route.kind === "provider") {
    return providerCall(deps, caller, { request, requestText, dialect: "chat", body: chat, route, startedAt });
  }
  oneAnswer(chat);
  const asked = { request, requestText, dialect: "chat", chat, route, startedAt } as const;
  return handle(deps, caller, asked, chat.stream === true ? streamedAnswer : wholeAnswer);
}

async function streamedAnswer(call: Call): Promise<Answered> {
  return streamed(call, await ask(call, (upstream) => upstream), chatRewriter(call));
}

async function wholeAnswer(call: Call): Promise<Answered> {
  const { capture } = call;
  const answer = await ask(call, readAnswer);
  const choice = takeWhole(capture, answer);
  const headers = await record(call, { httpStatus: 200, error: null });
  return {
    response: new Response(wholeBody(call, answer, choice), {
      headers: { "content-type": "application/json", ...headers },
    }),
  };
}

/** The answer as OpenAI would give it, as JSON; ids and logprobs only where the agent asked for them. */
function wholeBody({ chat, capture }: Call, answer: Json, choice: Json): string {
  const { start, finishReason, wholeUsage } = capture;
  const logprobs = chat.logprobs === true ? (choice["logprobs"] ?? null) : null;
  const ids = chat.return_token_ids === true ? `,"token_ids":${JSON.stringify(choice["token_ids"] ?? null)}` : "";
  const promptIds =
    chat.return_token_ids === true ? `,"prompt_token_ids":${JSON.stringify(answer["prompt_token_ids"] ?? null)}` : "";
  // Joined by hand: the message is a text already.
  return (
    `{"id":${JSON.stringify(start.id)},"object":"chat.completion","created":${Math.floor(start.startedAt / 1000)}` +
    `,"model":${JSON.stringify(chat.model)},"choices":[{"index":0,"message":${capture.messageText}` +
    `,"finish_reason":${JSON.stringify(finishReason)},"logprobs":${JSON.stringify(logprobs)}${ids}}]` +
    `,"usage":${JSON.stringify(wholeUsage)}${promptIds}}`
  );
}
