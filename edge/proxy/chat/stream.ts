import { errorBody } from "../../http-errors.ts";
import { firstChoice, isObject, parseObject, type Json } from "../answer.ts";
import { broken, checkModel, newToolCallId, type Call } from "../call.ts";
import { DONE, event } from "../sse.ts";
import type { Rewriter } from "../stream.ts";
import { MessageGatherer } from "../translated/pieces.ts";

/**
 * Inference's chat stream as OpenAI's, each chunk parsed once: token ids and logprobs are kept here and sent only to an
 * agent that asked for them. Held back are finish_reason, usage where asked for, and [DONE]. A failure in mid-stream
 * becomes a `data: {"error": …}` event, which every SDK but Mastra's raises.
 */
export function chatRewriter(call: Call): Rewriter {
  const { capture, chat } = call;
  const { start } = capture;
  const created = Math.floor(start.startedAt / 1000);
  // Each chunk differs in its choices only, so the rest is serialised once.
  const head = `{"id":${JSON.stringify(start.id)},"object":"chat.completion.chunk","created":${created},"model":${JSON.stringify(chat.model)}`;
  const toolCalls = toolCallGatherer(call);
  const eachAlone = chat.logprobs === true || chat.return_token_ids === true;
  let ended = false;
  let roleSent = false;
  let held = "";

  function chunkText(choice: Json, delta: Json, finishReason: string | null): string {
    const finish = finishReason === null ? "null" : JSON.stringify(finishReason);
    const logprobs = chat.logprobs === true ? `,"logprobs":${JSON.stringify(choice["logprobs"] ?? null)}` : "";
    const ids = chat.return_token_ids === true ? `,"token_ids":${JSON.stringify(choice["token_ids"] ?? null)}` : "";
    return event(
      `${head},"choices":[{"index":0,"delta":${JSON.stringify(delta)}${logprobs}${ids},"finish_reason":${finish}}]}`,
    );
  }

  /** The events as objects; one parse of many is a good deal cheaper than many. */
  function parsed(events: readonly string[]): readonly Json[] {
    const done = events.indexOf("[DONE]");
    if (done !== -1) ended = true;
    const wanted = done === -1 ? events : events.slice(0, done);
    const together = wanted.length < 2 ? undefined : parseArray(wanted);
    return wanted.map((data, at) => {
      const chunk = together?.[at] ?? parseObject(data);
      if (!isObject(chunk)) throw broken(capture, "its stream holds an event that is not a JSON object");
      const { error } = chunk;
      if (isObject(error)) throw broken(capture, `its stream failed: ${reasonOf(error)}`);
      return chunk;
    });
  }

  /** What a choice adds for the agent; gathers it too. */
  function deltaOf(choice: Json): Json {
    const given = isObject(choice["delta"]) ? choice["delta"] : {};
    const delta: Json = {};
    if (!roleSent) delta["role"] = "assistant";
    const { content, reasoning_content: reasoning, tool_calls: calls } = given;
    if (typeof content === "string" && (content !== "" || !roleSent)) {
      delta["content"] = content;
      capture.content = (capture.content ?? "") + content;
    }
    if (typeof reasoning === "string" && reasoning !== "") {
      delta["reasoning_content"] = reasoning;
      capture.reasoning = (capture.reasoning ?? "") + reasoning;
    }
    const called = toolCalls(calls);
    if (called.length > 0) delta["tool_calls"] = called;
    roleSent = true;
    return delta;
  }

  return {
    get ended() {
      return ended;
    },
    take(events) {
      let text = "";
      // Tokens that come together leave together, unless the agent wants to see each.
      let together: Json | undefined;
      for (const chunk of parsed(events)) {
        const choice = firstChoice(chunk);
        capture.takeChunk(chunk, choice);
        if (choice === undefined) continue;
        const delta = deltaOf(choice);
        if (capture.finishReason === "stop" && capture.toolCalls.length > 0) capture.finishReason = "tool_calls";
        if (capture.finishReason !== null) {
          held += chunkText(choice, delta, capture.finishReason);
        } else if (eachAlone) {
          text += chunkText(choice, delta, null);
        } else if (together === undefined) {
          together = delta;
        } else if (!joined(together, delta)) {
          text += chunkText({}, together, null);
          together = delta;
        }
      }
      return together === undefined || Object.keys(together).length === 0 ? text : text + chunkText({}, together, null);
    },
    close() {
      if (!ended) throw broken(capture, "its stream ended without [DONE]");
      checkModel(capture);
      if (capture.finishReason === null) throw broken(capture, "its stream ended without a finish_reason");
    },
    fail: (thrown) => event(JSON.stringify(errorBody(thrown))),
    ending() {
      const usage =
        chat.stream_options?.include_usage === true
          ? event(`${head},"choices":[],"usage":${JSON.stringify(capture.wholeUsage)}}`)
          : "";
      return held + usage + DONE;
    },
  };
}

/** Undefined where some event is not one JSON value. */
function parseArray(events: readonly string[]): readonly unknown[] | undefined {
  try {
    const values: unknown = JSON.parse(`[${events.join(",")}]`);
    return Array.isArray(values) && values.length === events.length ? values : undefined;
  } catch {
    return undefined;
  }
}

/** Adds a delta to the one before it; false where their order would be lost. */
function joined(before: Json, delta: Json): boolean {
  if ("tool_calls" in before || "tool_calls" in delta) return false;
  if ("reasoning_content" in before && "content" in delta) return false;
  if ("content" in before && before["content"] !== "" && "reasoning_content" in delta) return false;
  for (const field of ["content", "reasoning_content"]) {
    const [had, more] = [before[field], delta[field]];
    if (typeof more === "string") before[field] = (typeof had === "string" ? had : "") + more;
  }
  return true;
}

function reasonOf({ message }: Json): string {
  return typeof message === "string" ? message : "no reason given";
}

/** Gathers the tool calls of a stream's deltas and makes them whole: index, and id, type and name on the first. */
function toolCallGatherer({ capture }: Call): (deltas: unknown) => Json[] {
  const gatherer = new MessageGatherer(newToolCallId);
  return (deltas) => {
    if (!Array.isArray(deltas) || deltas.length === 0) return [];
    const { toolCalls } = gatherer.take({ tool_calls: deltas });
    capture.toolCalls.splice(0, Infinity, ...gatherer.message.toolCalls);
    return toolCalls.map(({ index, id, name, argumentsDelta }) =>
      id === undefined
        ? { index, function: { arguments: argumentsDelta } }
        : { index, id, type: "function", function: { name, arguments: argumentsDelta } },
    );
  };
}
