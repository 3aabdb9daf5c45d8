import type { RoutedModel } from "../../directory.ts";
import { errorBody } from "../../http-errors.ts";
import { parseObject, type Json } from "../answer.ts";
import { broken, record, type Call, type Caller, type ProxyDeps } from "../call.ts";
import type { AnswerHead, Dialect, DialectName } from "../dialect.ts";
import { embeddingsReader } from "../embeddings.ts";
import { handle, type Answered, type Asked } from "../handle.ts";
import { answerOf, headOf } from "../translated/answer.ts";
import { messagesDialect } from "../messages/messages.ts";
import { messagesErrorBody } from "../messages/error.ts";
import { messagesReader } from "../messages/reader.ts";
import { messagesEvent } from "../messages/stream.ts";
import { wholeUsage, type Gathered, type ProviderReader } from "./answer.ts";
import { asEvents } from "./as-events.ts";
import { chatReader, type ChatReaderOptions } from "./chat.ts";
import { completionsReader } from "./completions.ts";
import { firstEvent } from "./first-event.ts";
import { givenBack, providerHeaders, providerUrl, toolMessages } from "./request.ts";
import { responsesReader } from "./responses.ts";
import { responses } from "../responses/responses.ts";
import { DONE, event } from "../sse.ts";
import { streamed, type Rewriter } from "../stream.ts";
import { storedHistory } from "../translated/history.ts";
import { translating } from "../translated/stream.ts";
import { askInference, UpstreamError } from "../upstream.ts";
import { readAnswer } from "../whole-answer.ts";

/**
 * Calls to frozen providers: the request goes to the same path of the provider with its model and key, and the answer comes
 * back unchanged but for what it lacks. A provider that does not serve responses or messages, or answers them as chats, is
 * asked as a chat, and that is remembered. Such calls are recorded and metered, and nothing is trained on them.
 */

export interface ProviderAsked extends Omit<Asked, "chat"> {
  readonly body: Json;
  readonly route: ProviderRoute;
}
type ProviderRoute = Extract<RoutedModel, { kind: "provider" }>;

/** A large model may think for long; past this its client has given up too. */
const TIMEOUT_MS = 300_000;
/** Clients repeat by themselves. */
const MAX_ATTEMPTS = 3;

export async function providerCall(deps: ProxyDeps, caller: Caller, asked: ProviderAsked): Promise<Response> {
  const { body, dialect, route } = asked;
  const chat = {
    model: String(body["model"]),
    messages: toolMessages(dialect, body),
    stream: body["stream"] === true,
  };
  return handle(deps, caller, { ...asked, chat }, async (call) => {
    call.capture.provider = route.provider.name;
    const { providerMemory: memory } = deps;
    // By tenant: what one has seen of an address is not to change another's calls.
    const place = `${caller.principal.tenantId} ${route.provider.baseUrl}`;
    const translation = TRANSLATED[dialect];
    if (translation === undefined) return passedOn(call, asked).catch(told);
    const known = memory.serves(place, dialect, deps.now());
    const note = (serves: boolean): void => memory.note(place, dialect, { serves, now: deps.now() });
    if (known !== false) {
      try {
        const answered = await passedOn(call, { ...asked, isTried: known === undefined });
        note(true);
        return answered;
      } catch (thrown) {
        if (!isLack(thrown)) return told(thrown);
      }
    }
    const answered = await translated(call, asked, translation).catch(told);
    note(false);
    return answered;
  });
}

/** Dialects that a provider may lack, as long as it has chat. */
const TRANSLATED: Readonly<Partial<Record<DialectName, Dialect>>> = { messages: messagesDialect, responses };

function isLack(thrown: unknown): boolean {
  return (
    thrown instanceof AnsweredAsChatError ||
    (thrown instanceof UpstreamError && [404, 405, 501].includes(thrown.status ?? 0))
  );
}

/** Some providers know chat alone and answer so on whatever path they are asked. */
class AnsweredAsChatError extends Error {
  override readonly name = "AnsweredAsChatError";
}

/** Whether a request in another dialect got a chat's answer, or the first chunk of one. */
function isChat(dialect: DialectName, answer: Json | undefined): boolean {
  if (TRANSLATED[dialect] === undefined || answer === undefined) return false;
  const { type, choices, output, content } = answer;
  return Array.isArray(choices) && [type, output, content].every((own) => own === undefined);
}

/** What a provider refuses is told as ours where it is about us: its key is none of the agent's. */
function told(thrown: unknown): never {
  if (!(thrown instanceof UpstreamError) || thrown.status === undefined) throw thrown;
  const { status, attempts, message } = thrown;
  const options = { attempts, status, cause: thrown };
  if (status === 401 || status === 403) {
    throw new UpstreamError("ERR_UPSTREAM", `the provider refused its key (${status}); an admin sets it anew`, options);
  }
  if (status === 404) throw new UpstreamError("ERR_NOT_FOUND", message, options);
  if (status === 422) throw new UpstreamError("ERR_INVALID_REQUEST", message, options);
  throw thrown;
}

/** Reads what came of a call for its record. */
function settle({ capture }: Call, { message, finishReason, usage, model }: Gathered): void {
  capture.content = message.content;
  capture.reasoning = message.reasoning;
  capture.toolCalls.splice(0, Infinity, ...message.toolCalls);
  capture.finishReason = finishReason;
  capture.usage = usage;
  capture.modelAnswered = model;
}

/** `isTried`: whether it is yet to be seen that the provider serves the dialect. */
async function passedOn(call: Call, asked: ProviderAsked & { readonly isTried?: boolean }): Promise<Answered> {
  const { dialect, body, requestText } = asked;
  const head = headOf(call);
  const options = {
    promptCharacters: requestText.length,
    includeUsage: isIncludeUsage(body["stream_options"]),
  };
  const reader = READERS[dialect](head, options);
  if (call.chat.stream === true) {
    const upstream = await askForEvents(call, asked);
    if (asked.isTried !== true) return streamed(call, upstream, passing(call, reader, dialect));
    const { stream, first } = await firstEvent(upstream);
    if (first !== undefined && isChat(dialect, parseObject(first))) {
      void stream.body?.cancel();
      throw new AnsweredAsChatError();
    }
    return streamed(call, stream, passing(call, reader, dialect));
  }
  const { answer, given } = await askProvider(call, {
    ...asked,
    read: async (response) => ({ answer: await readAnswer(response), given: givenBack(response.headers) }),
  });
  if (isChat(dialect, answer)) throw new AnsweredAsChatError();
  const whole = reader.whole(answer);
  settle(call, reader.gathered);
  const headers = await record(call, { httpStatus: 200, error: null });
  return { response: Response.json(whole, { headers: { ...given, ...headers } }) };
}

const READERS: Readonly<Record<DialectName, (head: AnswerHead, options: ChatReaderOptions) => ProviderReader>> = {
  chat: chatReader,
  completions: completionsReader,
  responses: responsesReader,
  messages: messagesReader,
  embeddings: embeddingsReader,
};

function isIncludeUsage(options: unknown): boolean {
  return typeof options === "object" && options !== null && Reflect.get(options, "include_usage") === true;
}

/** A stream of events, also of a provider that answers in one piece. */
async function askForEvents(call: Call, asked: ProviderAsked): Promise<Response> {
  return askProvider(call, {
    ...asked,
    async read(response) {
      const type = response.headers.get("content-type") ?? "";
      if (!type.includes("json")) return response;
      const answer = await readAnswer(response);
      const events = asEvents(isChat(asked.dialect, answer) ? "chat" : asked.dialect, answer);
      return new Response(events.map((data) => event(JSON.stringify(data))).join("") + DONE);
    },
  });
}

/** A provider's own events. */
function passing(call: Call, reader: ProviderReader, dialect: DialectName): Rewriter {
  let taken = 0;
  let ending = "";
  return {
    get ended() {
      return reader.ended;
    },
    take(events) {
      let text = "";
      for (const data of events) {
        if (reader.ended) break;
        taken++;
        text += reader.take(data);
      }
      // An answer that breaks off is recorded as far as it came.
      settle(call, reader.gathered);
      return text;
    },
    close() {
      if (taken === 0) throw broken(call.capture, "its stream ended before it began");
      ending = reader.ending();
      settle(call, reader.gathered);
    },
    ending: () => ending,
    fail: (thrown) => failureEvent(dialect, thrown),
  };
}

function failureEvent(dialect: DialectName, thrown: unknown): string {
  if (dialect === "messages") return messagesEvent(messagesErrorBody(thrown));
  const { error } = errorBody(thrown);
  if (dialect !== "responses") return event(JSON.stringify({ error }));
  // Flat as OpenAI documents it, and nested as it is sent; SDKs read the one or the other.
  const { message, param, code } = error;
  return `event: error\ndata: ${JSON.stringify({ type: "error", message, param, code, error })}\n\n`;
}

/** The same request as a chat, and the chat's answer in the request's dialect. */
async function translated(given: Call, asked: ProviderAsked, dialect: Dialect): Promise<Answered> {
  const { deps, caller, capture } = given;
  const { tenantId } = caller.principal;
  const { db, writer } = deps;
  const { rolloutId } = caller.rollout;
  const parsed = await dialect.parse(asked.requestText, storedHistory({ db, writer, tenantId, rolloutId }));
  // With the history that its tool results are of.
  const call: Call = { ...given, chat: parsed.chat };
  const request = { ...asked, dialect: "chat", body: { ...parsed.chat } } as const;
  const promptCharacters = JSON.stringify(parsed.chat.messages).length;
  if (parsed.chat.stream === true) {
    const upstream = await askForEvents(call, {
      ...request,
      body: { ...parsed.chat, stream_options: { include_usage: true } },
    });
    const rewriter = translating(capture, parsed.stream(headOf(call)), {
      settle() {
        const { content, reasoning, toolCalls } = capture;
        capture.finishReason ??= toolCalls.length > 0 ? "tool_calls" : "stop";
        capture.usage ??= wholeUsage({}, { promptCharacters, message: { content, reasoning, toolCalls } });
      },
    });
    return streamed(call, upstream, rewriter);
  }
  const reader = chatReader(headOf(call), { promptCharacters, includeUsage: true });
  const answer = reader.whole(await askProvider(call, { ...request, read: readAnswer }));
  settle(call, reader.gathered);
  const body = parsed.whole(answerOf(call, answer));
  const headers = await record(call, { httpStatus: 200, error: null });
  return { response: Response.json(body, { headers }) };
}

interface AskOptions<T> extends ProviderAsked {
  readonly read: (response: Response) => Promise<T> | T;
}

async function askProvider<T>(call: Call, { request, dialect, body, route, read }: AskOptions<T>): Promise<T> {
  const { deps, capture, ending } = call;
  const { name, baseUrl, apiKey } = route.provider;
  const { value, attempts } = await askInference({
    url: providerUrl(baseUrl, dialect),
    name: `provider ${name}`,
    body: JSON.stringify({ ...body, model: route.model }),
    headers: providerHeaders(request.headers, dialect, apiKey),
    fetch: deps.fetchProvider,
    ending,
    limits: deps.limits,
    timeoutMs: TIMEOUT_MS,
    maxAttempts: MAX_ATTEMPTS,
    read: (response) => {
      capture.firstByteAt = deps.now();
      return read(response);
    },
  });
  capture.upstreamAttempts = attempts;
  return value;
}
