import { FulgurError, messageOf } from "#shared/errors.ts";
import { errorBody } from "../http-errors.ts";
import { firstChoice, isObject, parseObject, type Json } from "./answer.ts";
import { broken, checkModel, ClientGoneError, newToolCallId, record, recordFailure, type Call } from "./call.ts";
import { DONE, event, eventReader, HEARTBEAT } from "./sse.ts";

/** An answer that stops coming for this long is given up. */
const IDLE_MS = 60_000;
/**
 * How often a comment is sent while nothing comes. A client that has left shows itself by nothing but a write that fails,
 * and one that waits must not think that we have.
 */
const HEARTBEAT_MS = 2000;
/** Writes closer together than this are gathered. */
const BURST_MS = 10;

export interface StreamedAnswer {
  readonly readable: ReadableStream<Uint8Array>;
  /** Ends when everything was sent and recorded; never rejects. */
  readonly finished: Promise<void>;
}

/**
 * Passes inference's stream on as OpenAI's, parsing each chunk once: token ids and logprobs are kept here and sent only
 * to an agent that asked for them. What ends the answer (finish_reason, usage, [DONE]) leaves after the record is
 * committed. A failure in mid-stream becomes a `data: {"error": …}` event, which every SDK but Mastra's raises.
 */
export function streamAnswer(call: Call, upstream: ReadableStream<Uint8Array>): StreamedAnswer {
  const { readable, writable } = new IdentityTransformStream();
  return { readable, finished: pump(call, upstream, writable.getWriter()) };
}

async function pump(
  call: Call,
  upstream: ReadableStream<Uint8Array>,
  client: WritableStreamDefaultWriter<Uint8Array>,
): Promise<void> {
  const { client: clientGone, deps } = call;
  const { send, sent } = outlet(client, {
    now: deps.now,
    onGone: () => clientGone.abort(new ClientGoneError()),
  });
  const reader = upstream.getReader();
  let lastByteAt = deps.now();
  const watchdog = setInterval(() => {
    const idleMs = deps.now() - lastByteAt;
    if (idleMs >= HEARTBEAT_MS) send(HEARTBEAT);
    if (idleMs >= IDLE_MS) reader.cancel().catch(() => undefined);
  }, HEARTBEAT_MS);
  clientGone.signal.addEventListener("abort", () => void reader.cancel().catch(() => undefined));
  try {
    const chunks = rewriter(call);
    const read = eventReader();
    while (!chunks.ended) {
      const piece = await reader.read().catch((cause: unknown) => {
        throw broken(call.capture, `its stream broke (${messageOf(cause)})`);
      });
      clientGone.signal.throwIfAborted();
      if (piece.done) {
        throw deps.now() - lastByteAt >= IDLE_MS ? idle() : broken(call.capture, "its stream ended without [DONE]");
      }
      lastByteAt = deps.now();
      let text = "";
      for (const data of read(piece.value)) text += chunks.take(data);
      if (text !== "") send(text);
    }
    checkModel(call.capture);
    if (call.capture.finishReason === null) throw broken(call.capture, "its stream ended without a finish_reason");
    await record(call, { httpStatus: 200, error: null });
    send(chunks.ending());
    // From here on the call is whole, whether or not its client is still there.
    await sent()
      .then(() => client.close())
      .catch(() => undefined);
  } catch (thrown) {
    await fail(call, thrown, { reader, client, send, sent });
  } finally {
    clearInterval(watchdog);
  }
}

interface Outlet {
  /** Sends a text, at once or, while an earlier one is on its way, together with what comes after. */
  readonly send: (text: string) => void;
  /** Resolves when everything was taken; rejects when the client has gone. */
  readonly sent: () => Promise<void>;
}

/**
 * A write costs far more than its bytes: what gathers while one is under way leaves as one, and a write that follows
 * another at once waits a little for more. A stream at the pace of a model is never held back.
 */
function outlet(client: WritableStreamDefaultWriter<Uint8Array>, { now, onGone }: OutletOptions): Outlet {
  const encoder = new TextEncoder();
  let waiting = "";
  let writing: Promise<void> | undefined;
  let wroteAt = -Infinity;
  const drain = async (): Promise<void> => {
    while (waiting !== "") {
      if (now() - wroteAt < BURST_MS) await pause(BURST_MS);
      const text = waiting;
      waiting = "";
      await client.write(encoder.encode(text));
      wroteAt = now();
    }
    writing = undefined;
  };
  return {
    send(text) {
      waiting += text;
      if (writing !== undefined) return;
      writing = drain();
      writing.catch(onGone);
    },
    sent: async () => {
      await writing;
    },
  };
}

interface OutletOptions {
  readonly now: () => number;
  /** Called when a write fails. */
  readonly onGone: () => void;
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => void setTimeout(resolve, ms));
}

interface Ends extends Outlet {
  readonly reader: ReadableStreamDefaultReader<Uint8Array>;
  readonly client: WritableStreamDefaultWriter<Uint8Array>;
}

async function fail(call: Call, thrown: unknown, { reader, client, send, sent }: Ends): Promise<void> {
  // Frees the endpoint's row at once.
  await reader.cancel(messageOf(thrown)).catch(() => undefined);
  if (call.client.signal.aborted) call.deps.counters.add("client_disconnects", 1);
  const told = await recordFailure(call, thrown);
  if (call.client.signal.aborted) {
    await client.abort(thrown).catch(() => undefined);
    return;
  }
  try {
    send(event(JSON.stringify(errorBody(told))));
    await sent();
    await client.close();
  } catch {
    // The client has gone too; the record is written.
  }
}

function idle(): FulgurError {
  return new FulgurError("ERR_TIMEOUT", `inference sent nothing for ${IDLE_MS} ms in mid-stream`);
}

interface Rewriter {
  /** True after [DONE]. */
  readonly ended: boolean;
  /** One upstream event → what may be sent at once. @throws UpstreamError when it tells of a failure */
  take(data: string): string;
  /** What was held back: finish_reason, usage where asked for, [DONE]. */
  ending(): string;
}

function rewriter(call: Call): Rewriter {
  const { capture, chat } = call;
  const { start } = capture;
  const created = Math.floor(start.startedAt / 1000);
  // Each chunk differs in its choices only, so the rest is serialised once.
  const head = `{"id":${JSON.stringify(start.id)},"object":"chat.completion.chunk","created":${created},"model":${JSON.stringify(chat.model)}`;
  const toolCalls = toolCallGatherer(call);
  let ended = false;
  let roleSent = false;
  let held = "";

  function chunkText(choice: Json, delta: Json): string {
    const finish = capture.finishReason === null ? "null" : JSON.stringify(capture.finishReason);
    const logprobs = chat.logprobs === true ? `,"logprobs":${JSON.stringify(choice["logprobs"] ?? null)}` : "";
    const ids = chat.return_token_ids === true ? `,"token_ids":${JSON.stringify(choice["token_ids"] ?? null)}` : "";
    return event(
      `${head},"choices":[{"index":0,"delta":${JSON.stringify(delta)}${logprobs}${ids},"finish_reason":${finish}}]}`,
    );
  }

  return {
    get ended() {
      return ended;
    },
    take(data) {
      if (data === "[DONE]") {
        ended = true;
        return "";
      }
      const chunk = parseObject(data);
      if (chunk === undefined) throw broken(capture, "its stream holds an event that is not a JSON object");
      const { error } = chunk;
      if (isObject(error)) throw broken(capture, `its stream failed: ${reasonOf(error)}`);
      const choice = firstChoice(chunk);
      capture.takeChunk(chunk, choice);
      if (choice === undefined) return "";
      const given = isObject(choice["delta"]) ? choice["delta"] : {};
      const delta: Json = {};
      if (!roleSent) delta["role"] = "assistant";
      if (typeof given["content"] === "string" && (given["content"] !== "" || !roleSent)) {
        delta["content"] = given["content"];
        capture.content = (capture.content ?? "") + given["content"];
      }
      const { reasoning_content: reasoning } = given;
      if (typeof reasoning === "string" && reasoning !== "") {
        delta["reasoning_content"] = reasoning;
        capture.reasoning = (capture.reasoning ?? "") + reasoning;
      }
      const called = toolCalls(given["tool_calls"]);
      if (called.length > 0) delta["tool_calls"] = called;
      roleSent = true;
      if (capture.finishReason === "stop" && capture.toolCalls.length > 0) capture.finishReason = "tool_calls";
      const nothingToSay = Object.keys(delta).length === 0 && chat.logprobs !== true && chat.return_token_ids !== true;
      if (capture.finishReason === null) return nothingToSay ? "" : chunkText(choice, delta);
      held += chunkText(choice, delta);
      return "";
    },
    ending() {
      const usage =
        chat.stream_options?.include_usage === true
          ? event(`${head},"choices":[],"usage":${JSON.stringify(capture.wholeUsage)}}`)
          : "";
      return held + usage + DONE;
    },
  };
}

function reasonOf({ message }: Json): string {
  return typeof message === "string" ? message : "no reason given";
}

/** Gathers the tool calls of a stream's deltas and makes them whole: index, and id, type and name on the first. */
function toolCallGatherer({ capture }: Call): (deltas: unknown) => Json[] {
  const seen = new Set<string>();
  return (deltas) => {
    if (!Array.isArray(deltas)) return [];
    const sent: Json[] = [];
    for (const given of deltas as readonly unknown[]) {
      if (!isObject(given)) continue;
      const called = isObject(given["function"]) ? given["function"] : {};
      const text = typeof called["arguments"] === "string" ? called["arguments"] : "";
      const index = Number.isInteger(given["index"])
        ? Number(given["index"])
        : Math.max(0, capture.toolCalls.length - 1);
      const known = capture.toolCalls[index];
      if (known !== undefined) {
        known.function.arguments += text;
        sent.push({ index, function: { arguments: text } });
        continue;
      }
      const id =
        typeof given["id"] === "string" && given["id"] !== "" && !seen.has(given["id"]) ? given["id"] : newToolCallId();
      seen.add(id);
      const name = typeof called["name"] === "string" ? called["name"] : "";
      sent.push({ index: capture.toolCalls.length, id, type: "function", function: { name, arguments: text } });
      capture.toolCalls.push({ id, type: "function", function: { name, arguments: text } });
    }
    return sent;
  };
}
