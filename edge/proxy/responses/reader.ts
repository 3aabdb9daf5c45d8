import { isObject, type Json, type ToolCall } from "../answer.ts";
import type { AnswerMessage } from "../dialect.ts";

/**
 * What a provider itself answered on `/v1/responses`, read for the record. Lenient: what is missing is
 * left open, what is unknown is passed over, and nothing throws.
 */

export interface ReadAnswer {
  readonly message: AnswerMessage;
  /** In chat's words; null where the answer did not come to an end. */
  readonly finishReason: string | null;
  readonly model: string | null;
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
    model: typeof response["model"] === "string" ? response["model"] : null,
  };
}

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
