import { isObject, type Json, type ToolCall, type Usage } from "../answer.ts";
import type { Answer, AnswerHead } from "../dialect.ts";
import { itemId, responseId } from "./ids.ts";
import { wantsLogprobs, type ResponsesBody } from "./request.ts";

/** A chat answer as a response object. */
export function wholeResponse(body: ResponsesBody, answer: Answer): Json {
  const { id, message, finishReason, usage } = answer;
  const { content, reasoning, toolCalls } = message;
  const output: Item[] = [];
  if (reasoning !== null && reasoning !== "") output.push(reasoningItem(itemId(id, "rs", 0), reasoning));
  // An answer that says nothing and calls nothing has an empty message: agents without any item would ask again.
  if ((content ?? "") !== "" || toolCalls.length === 0) {
    const text = content ?? "";
    const logprobs = wantsLogprobs(body)
      ? textLogprobs(text, logprobEntries(answer.logprobs), { from: reasoning?.length ?? 0 })
      : null;
    output.push(messageItem(itemId(id, "msg", 0), { text, logprobs }));
  }
  for (const [n, call] of toolCalls.entries()) output.push(callItem(itemId(id, "fc", n), call));
  return responseObject(body, answer, { finishReason, usage, output: withLastStatus(output, finishReason) });
}

export type ItemStatus = "in_progress" | "completed" | "incomplete";
export type Item = Json & { readonly type: string; readonly id: string; readonly status: ItemStatus };

/** The words that the model thought, as it wrote them; there is no summary of them. */
export function reasoningItem(id: string, text: string): Item {
  const content = [{ type: "reasoning_text", text }];
  return { id, type: "reasoning", status: "completed", summary: [], content, encrypted_content: null };
}

export interface OutputText {
  readonly text: string;
  /** Null where they were not asked for. */
  readonly logprobs: readonly Json[] | null;
}

export function messageItem(id: string, said: OutputText): Item {
  return { id, type: "message", status: "completed", role: "assistant", content: [outputText(said)] };
}

export function outputText({ text, logprobs }: OutputText): Json {
  return { type: "output_text", text, annotations: [], ...(logprobs === null ? {} : { logprobs }) };
}

export function callItem(id: string, { id: callId, function: called }: ToolCall): Item {
  const { name, arguments: text } = called;
  return { id, type: "function_call", status: "completed", call_id: callId, name, arguments: text };
}

/** How a chat answer's finish reason is told: null where the answer is whole. */
export function incompleteReason(finishReason: string): "max_output_tokens" | "content_filter" | null {
  if (finishReason === "length") return "max_output_tokens";
  return finishReason === "content_filter" ? "content_filter" : null;
}

/** The last item is the one that was cut. */
export function withLastStatus(output: readonly Item[], finishReason: string): Item[] {
  if (incompleteReason(finishReason) === null) return [...output];
  return output.map((item, i) => (i === output.length - 1 ? { ...item, status: "incomplete" } : item));
}

interface Outcome {
  /** Undefined while the answer is on its way or where it failed. */
  readonly finishReason?: string;
  readonly usage?: Usage;
  readonly output: readonly Item[];
  readonly error?: { readonly code: string; readonly message: string };
}

/** The response object with the request's fields as OpenAI repeats them, its defaults where they were not set. */
export function responseObject(body: ResponsesBody, head: AnswerHead, outcome: Outcome): Json {
  const { finishReason, usage, output, error } = outcome;
  const incomplete = finishReason === undefined ? null : incompleteReason(finishReason);
  return {
    id: responseId(head.id),
    object: "response",
    created_at: Math.floor(head.startedAt / 1000),
    status: statusOf(outcome, incomplete),
    background: false,
    error: error ?? null,
    incomplete_details: incomplete === null ? null : { reason: incomplete },
    instructions: body.instructions ?? null,
    max_output_tokens: body.max_output_tokens ?? null,
    max_tool_calls: body.max_tool_calls ?? null,
    metadata: body.metadata ?? {},
    model: head.model,
    output,
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    previous_response_id: body.previous_response_id ?? null,
    prompt_cache_key: body.prompt_cache_key ?? null,
    reasoning: { effort: null, summary: null, ...body.reasoning },
    safety_identifier: body.safety_identifier ?? null,
    service_tier: "default",
    store: body.store ?? true,
    temperature: body.temperature ?? 1,
    text: { ...body.text, format: body.text?.format ?? { type: "text" } },
    tool_choice: body.tool_choice ?? "auto",
    tools: (body.tools ?? []).map(toolEcho),
    top_logprobs: body.top_logprobs ?? 0,
    top_p: body.top_p ?? 1,
    truncation: "disabled",
    usage: usage === undefined ? null : responseUsage(usage),
    user: body.user ?? null,
  };
}

function statusOf({ finishReason, error }: Outcome, incomplete: string | null): string {
  if (error !== undefined) return "failed";
  if (finishReason === undefined) return "in_progress";
  return incomplete === null ? "completed" : "incomplete";
}

/** Python's clients read these fields of a tool without asking whether they are there. */
function toolEcho(tool: unknown): unknown {
  return isObject(tool) ? { description: null, parameters: null, strict: null, ...tool } : tool;
}

function responseUsage(usage: Usage): Json {
  return {
    input_tokens: usage.prompt_tokens,
    input_tokens_details: { cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0, cache_write_tokens: 0 },
    output_tokens: usage.completion_tokens,
    output_tokens_details: { reasoning_tokens: usage.completion_tokens_details?.reasoning_tokens ?? 0 },
    total_tokens: usage.total_tokens,
  };
}

/** The tokens of a chat choice's `logprobs` in the form of responses. */
export function logprobEntries(logprobs: Json | null): Json[] {
  const content = logprobs?.["content"];
  if (!Array.isArray(content)) return [];
  const entries: readonly unknown[] = content;
  return entries.filter(isObject).map((entry) => {
    const { top_logprobs: top } = entry;
    return { ...logprobOf(entry), top_logprobs: Array.isArray(top) ? top.filter(isObject).map(logprobOf) : [] };
  });
}

function logprobOf({ token, logprob, bytes }: Json): Json {
  const text = typeof token === "string" ? token : "";
  return { token: text, logprob, bytes: Array.isArray(bytes) ? bytes : Array.from(new TextEncoder().encode(text)) };
}

/**
 * Those of an answer's tokens that make up its text. Chat counts all that was sampled: reasoning, tool calls, the end of turn.
 * @param from where the text may begin at the earliest, in characters of all tokens together
 * @returns all of them where the text is not found, such as after characters of several tokens
 */
export function textLogprobs(
  text: string,
  entries: readonly Json[],
  { from = 0 }: { readonly from?: number } = {},
): readonly Json[] {
  if (text === "") return [];
  const tokens = entries.map(({ token }) => String(token));
  const sampled = tokens.join("");
  // Some endpoints leave out the reasoning's tokens.
  const found = sampled.indexOf(text, from);
  const begin = found === -1 ? sampled.indexOf(text) : found;
  if (begin === -1) return entries;
  const end = begin + text.length;
  let at = 0;
  return entries.filter((_entry, i) => {
    const start = at;
    at += tokens[i]?.length ?? 0;
    return start < end && at > begin;
  });
}
