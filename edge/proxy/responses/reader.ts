import { isObject, parseObject, type Json, type ToolCall, type Usage } from "../answer.ts";
import type { AnswerMessage } from "../dialect.ts";
import { eventReader } from "../sse.ts";

/**
 * What a provider itself answered on `/v1/responses`, read for the record and for metering. Lenient: what is missing is
 * left open, what is unknown is passed over, and nothing throws.
 */

export interface ReadAnswer {
  readonly message: AnswerMessage;
  /** In chat's words; null where the answer did not come to an end. */
  readonly finishReason: string | null;
  readonly usage: Usage | undefined;
  readonly model: string | null;
  /** What the provider says went wrong, or null. */
  readonly error: string | null;
}

/** Reads a whole response object. */
export function readResponse(response: Json): ReadAnswer {
  const { output, output_text: outputText } = response;
  const items: readonly unknown[] = Array.isArray(output) ? output : [];
  const given = messageOf(items.filter(isObject));
  const content = given.content ?? (typeof outputText === "string" ? outputText : null);
  const message = { ...given, content };
  return {
    message,
    finishReason: finishReasonOf(response, message),
    usage: usageOf(response["usage"]),
    model: typeof response["model"] === "string" ? response["model"] : null,
    error: errorOf(response),
  };
}

export interface ResponseStreamReader {
  /** The provider's bytes as they pass, cut anywhere. */
  take(bytes: Uint8Array): void;
  /** What has come so far. */
  answer(): ReadAnswer;
}

/** Reads a stream of a response's events. The response that the last event brings is believed, else the items that came. */
export function responseStreamReader(): ResponseStreamReader {
  const read = eventReader();
  /** Items by output index, done or growing. */
  const items = new Map<number, Json>();
  /** Where events without an output index belong. */
  let open: number | undefined;
  let response: Json = { status: "in_progress" };
  let failure: string | null = null;

  function takeEvent(event: Json): void {
    const { type, response: given, item, output_index: outputIndex, delta } = event;
    const ending = typeof type === "string" ? ENDING.exec(type)?.[1] : undefined;
    if (ending !== undefined) response = { ...response, status: ending, ...(isObject(given) ? given : {}) };
    else if (isObject(given)) response = given;
    if (type === "error" || isObject(event["error"])) failure = errorOf(event) ?? NO_REASON;
    if (!isObject(item) && typeof delta !== "string") return;
    const isNew = open === undefined || type === "response.output_item.added";
    const index = typeof outputIndex === "number" ? outputIndex : isNew ? items.size : (open ?? 0);
    open = type === "response.output_item.done" ? undefined : index;
    if (isObject(item)) items.set(index, { ...items.get(index), ...item });
    else if (typeof delta === "string") grow(items, index, { type, delta });
  }

  return {
    take(bytes) {
      for (const data of read(bytes)) {
        const event = parseObject(data);
        if (event !== undefined) takeEvent(event);
      }
    },
    answer() {
      const { output } = response;
      const isWhole = Array.isArray(output) && output.length > 0;
      const gathered = [...items].toSorted(([a], [b]) => a - b).map(([, item]) => item);
      const answer = readResponse(isWhole ? response : { ...response, output: gathered });
      return { ...answer, error: answer.error ?? failure };
    },
  };
}

const ENDING = /^response\.(completed|incomplete|failed)$/;

interface Delta {
  readonly type: unknown;
  readonly delta: string;
}

/** Adds a delta to its item; some providers never send the event that begins one. */
function grow(items: Map<number, Json>, index: number, { type, delta }: Delta): void {
  const item = items.get(index);
  if (type === "response.function_call_arguments.delta") {
    const text = typeof item?.["arguments"] === "string" ? item["arguments"] : "";
    items.set(index, { type: "function_call", ...item, arguments: text + delta });
    return;
  }
  const itemType = GROWN_BY.get(type);
  if (itemType === undefined) return;
  const text = textOf(item?.["content"]) ?? "";
  items.set(index, { type: itemType, ...item, content: [{ text: text + delta }] });
}

const GROWN_BY: ReadonlyMap<unknown, string> = new Map([
  ["response.output_text.delta", "message"],
  ["response.refusal.delta", "message"],
  ["response.reasoning_text.delta", "reasoning"],
  ["response.reasoning_summary_text.delta", "reasoning"],
]);

const NO_REASON = "the provider gave no reason";

function messageOf(items: readonly Json[]): AnswerMessage {
  let content: string | null = null;
  let reasoning: string | null = null;
  const toolCalls: ToolCall[] = [];
  for (const item of items) {
    const { type = "message" } = item;
    if (type === "message") content = joined(content, textOf(item["content"]));
    else if (type === "reasoning") reasoning = joined(reasoning, textOf(item["content"]) ?? textOf(item["summary"]));
    else if (type === "function_call") toolCalls.push(callOf(item));
  }
  return { content, reasoning, toolCalls };
}

function joined(before: string | null, text: string | null): string | null {
  return text === null ? before : (before ?? "") + text;
}

/** The text of an item's parts; null where there is none. */
function textOf(content: unknown): string | null {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return null;
  const parts: readonly unknown[] = content;
  let text: string | null = null;
  for (const part of parts) {
    const said = isObject(part) ? (part["text"] ?? part["refusal"]) : undefined;
    if (typeof said === "string") text = joined(text, said);
  }
  return text;
}

function callOf({ call_id: callId, id, name, arguments: text }: Json): ToolCall {
  return {
    id: typeof callId === "string" ? callId : typeof id === "string" ? id : "",
    type: "function",
    function: {
      name: typeof name === "string" ? name : "",
      arguments: typeof text === "string" ? text : JSON.stringify(text ?? {}),
    },
  };
}

function finishReasonOf(response: Json, { toolCalls }: AnswerMessage): string | null {
  const { status, incomplete_details: details } = response;
  if (status === "failed" || status === "cancelled" || status === "in_progress" || status === "queued") return null;
  if (status === "incomplete" || isObject(details)) {
    return isObject(details) && details["reason"] === "content_filter" ? "content_filter" : "length";
  }
  return toolCalls.length > 0 ? "tool_calls" : "stop";
}

function usageOf(usage: unknown): Usage | undefined {
  if (!isObject(usage)) return undefined;
  const { input_tokens: input, output_tokens: output } = usage;
  if (typeof input !== "number" || typeof output !== "number") return undefined;
  return { prompt_tokens: input, completion_tokens: output, total_tokens: input + output };
}

/** The message of an answer's `error`, or of an error event that is flat. */
function errorOf({ error, type, message }: Json): string | null {
  if (isObject(error)) return typeof error["message"] === "string" ? error["message"] : NO_REASON;
  if (typeof error === "string") return error;
  return type === "error" && typeof message === "string" ? message : null;
}
