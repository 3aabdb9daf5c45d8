import { parseObject, type Json, type Usage } from "../answer.ts";
import type { Answer, AnswerHead } from "../dialect.ts";

/** An answer as Anthropic's clients read it. */

/** @param options `thinking`: whether the client wants to see what the model thought */
export function messagesAnswer(answer: Answer, options: { readonly thinking: boolean }): Json {
  const { content, reasoning, toolCalls } = answer.message;
  return {
    ...messageHead(answer),
    content: [
      ...(options.thinking && reasoning !== null ? [{ type: "thinking", thinking: reasoning, signature: "" }] : []),
      ...(content === null || content === "" ? [] : [{ type: "text", text: content, citations: null }]),
      ...toolCalls.map(({ id, function: { name, arguments: text } }) => ({
        type: "tool_use",
        id,
        name,
        input: toolInput(text),
      })),
    ],
    stop_reason: stopReasonOf(answer.finishReason),
    stop_sequence: null,
    usage: messagesUsage(answer.usage),
  };
}

/** What does not depend on what is said. */
export function messageHead({ id, model }: AnswerHead): Json {
  return { id: `msg_${id.slice(id.indexOf("_") + 1)}`, type: "message", role: "assistant", model };
}

const STOP_REASONS: Readonly<Record<string, string>> = {
  stop: "end_turn",
  length: "max_tokens",
  tool_calls: "tool_use",
  content_filter: "refusal",
};

/** OpenAI's word for why an answer ended → Anthropic's. Chat does not tell a stop sequence from an end of turn. */
export function stopReasonOf(finishReason: string): string {
  return STOP_REASONS[finishReason] ?? "end_turn";
}

/** Anthropic counts what came from a cache beside the rest of the input; several clients require the cache's fields. */
export function messagesUsage(usage: Usage): Json {
  const cached = Math.min(usage.prompt_tokens_details?.cached_tokens ?? 0, usage.prompt_tokens);
  return {
    input_tokens: usage.prompt_tokens - cached,
    output_tokens: usage.completion_tokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
  };
}

/** Anthropic's inputs are objects: arguments that are none are shown under a key of their own, never as an empty input. */
function toolInput(text: string): Json {
  if (text.trim() === "") return {};
  return parseObject(text) ?? { unparsed_arguments: text };
}
