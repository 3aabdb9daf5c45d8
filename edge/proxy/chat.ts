import { newId } from "#shared/ids.ts";
import { firstChoice, isObject, parseObject, type Json } from "./answer.ts";
import { readText } from "./body.ts";
import {
  ask,
  broken,
  checkModel,
  ClientGoneError,
  newToolCallId,
  record,
  recordFailure,
  type Call,
  type Caller,
  type ProxyDeps,
} from "./call.ts";
import { Capture, wholeToolCalls } from "./capture.ts";
import { parseChatRequest } from "./chat-request.ts";
import { streamAnswer } from "./chat-stream.ts";

/**
 * `POST /v1/chat/completions`, streaming or not: the policy's version is resolved and asked by name, the call is
 * recorded, and only then does the answer's last byte leave.
 */
export async function chatCompletions(deps: ProxyDeps, caller: Caller, request: Request): Promise<Response> {
  const { principal, rollout } = caller;
  const startedAt = deps.now();
  const requestText = await readText(request);
  const chat = parseChatRequest(requestText);
  const { db, writer, waitUntil: later } = deps;
  const seat = await deps.admission.admit({ principal, rollout, db, writer, now: deps.now(), later });
  const capture = new Capture({
    id: newId("call"),
    tenantId: principal.tenantId,
    rolloutId: rollout.rolloutId,
    attempt: rollout.attempt,
    mode: rollout.mode,
    dialect: "chat",
    modelAsked: chat.model,
    requestText,
    startedAt,
  });
  const call: Call = { deps, caller, chat, capture, client: new AbortController(), failOpen: seat.failOpen };
  // In production this fires when the client leaves; local workerd shows it only where a stream is written.
  request.signal.addEventListener("abort", () => call.client.abort(new ClientGoneError()));
  const done = chat.stream === true ? streamed(call) : whole(call);
  done.settled.finally(() => seat.leave(capture.tokens.prompt + capture.tokens.completion)).catch(() => undefined);
  // A client that hangs up must not take the record with it.
  deps.waitUntil(done.settled.catch(() => undefined));
  return done.response;
}

/** `response` is what the client gets; `settled` ends when the call is recorded too. */
interface Handling {
  readonly response: Promise<Response>;
  readonly settled: Promise<unknown>;
}

function whole(call: Call): Handling {
  const response = wholeAnswer(call);
  return { response, settled: response };
}

async function wholeAnswer(call: Call): Promise<Response> {
  const { capture } = call;
  try {
    const answer = await ask(call, readAnswer);
    const choice = firstChoice(answer);
    const message = wholeMessage(choice?.["message"]);
    capture.takeAnswer(answer, message);
    checkModel(capture);
    if (choice === undefined) throw broken(capture, "its answer has no choice");
    if (capture.finishReason === null) throw broken(capture, "its answer has no finish_reason");
    if (message["tool_calls"] !== undefined && capture.finishReason === "stop") capture.finishReason = "tool_calls";
    const headers = await record(call, { httpStatus: 200, error: null });
    return Response.json(wholeBody(call, answer, choice, message), { headers });
  } catch (thrown) {
    throw await recordFailure(call, thrown);
  }
}

function streamed(call: Call): Handling {
  const settled = Promise.withResolvers<void>();
  const response = (async () => {
    try {
      const body = await ask(call, (upstream) => upstream.body);
      if (body === null) throw broken(call.capture, "its answer has no body");
      const { readable, finished } = streamAnswer(call, body);
      settled.resolve(finished);
      return new Response(readable, {
        headers: { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" },
      });
    } catch (thrown) {
      const failure = await recordFailure(call, thrown);
      settled.resolve();
      throw failure;
    }
  })();
  return { response, settled: settled.promise };
}

async function readAnswer(response: Response): Promise<Json> {
  const answer = parseObject(await response.text());
  if (answer === undefined) throw new Error("its answer is not a JSON object");
  return answer;
}

/** The assistant's message made whole: role, content and, where it calls tools, calls with unique ids. */
function wholeMessage(given: unknown): Json {
  const message = isObject(given) ? given : {};
  const { tool_calls: called, content, role: _role, token_ids: _ids, ...rest } = message;
  const toolCalls = wholeToolCalls(called, newToolCallId);
  return {
    role: "assistant",
    content: typeof content === "string" ? content : null,
    ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null)),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  };
}

/** The answer as OpenAI would give it; ids and logprobs only where the agent asked for them. */
function wholeBody({ chat, capture }: Call, answer: Json, choice: Json, message: Json): Json {
  return {
    id: capture.start.id,
    object: "chat.completion",
    created: Math.floor(capture.start.startedAt / 1000),
    model: chat.model,
    choices: [
      {
        index: 0,
        message,
        finish_reason: capture.finishReason,
        logprobs: chat.logprobs === true ? (choice["logprobs"] ?? null) : null,
        ...(chat.return_token_ids === true ? { token_ids: choice["token_ids"] ?? null } : {}),
      },
    ],
    usage: capture.wholeUsage,
    ...(chat.return_token_ids === true ? { prompt_token_ids: answer["prompt_token_ids"] ?? null } : {}),
  };
}
