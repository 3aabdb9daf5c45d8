import { isObject, type Json } from "../answer.ts";
import type { Call } from "../call.ts";
import type { Answer, AnswerHead } from "../dialect.ts";

/** What every answer to a call begins with. */
export function headOf({ chat, capture }: Call): AnswerHead {
  return { id: capture.start.id, startedAt: capture.start.startedAt, model: chat.model };
}

/** The answer that a capture has read. */
export function answerOf(call: Call, choice: Json): Answer {
  const { capture } = call;
  const message = capture.message ?? {};
  const { content, tool_calls: toolCalls } = message;
  const reasoning = message["reasoning_content"] ?? message["reasoning"];
  return {
    ...headOf(call),
    message: {
      content: typeof content === "string" ? content : null,
      reasoning: typeof reasoning === "string" ? reasoning : null,
      toolCalls: Array.isArray(toolCalls) ? toolCalls : [],
    },
    finishReason: capture.finishReason ?? "stop",
    usage: capture.wholeUsage,
    logprobs: isObject(choice["logprobs"]) ? choice["logprobs"] : null,
  };
}
