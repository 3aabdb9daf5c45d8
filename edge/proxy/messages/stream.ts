import type { Json } from "../answer.ts";
import type { AnswerEncoder, AnswerEnd, AnswerHead, ToolCallPiece } from "../dialect.ts";
import { messageHead, messagesUsage, stopReasonOf } from "./answer.ts";
import { messagesErrorBody } from "./error.ts";

/**
 * One answer as Anthropic's events. Texts and thoughts are blocks one after the other. Tool blocks stay open until the
 * end: endpoints may interleave their pieces, and a client that runs a tool as soon as its block stops then does so only
 * for a call that is recorded.
 * @param options `thinking`: whether the client wants to see what the model thought
 */
export function messagesEncoder(head: AnswerHead, options: { readonly thinking: boolean }): AnswerEncoder {
  let blocks = 0;
  let prose: { readonly type: "text" | "thinking"; readonly index: number } | undefined;
  /** Tool call's index → its block's. */
  const toolBlocks = new Map<number, number>();

  function open(block: Json): { readonly index: number; readonly events: string } {
    const index = blocks++;
    return { index, events: messagesEvent({ type: "content_block_start", index, content_block: block }) };
  }

  function closeProse(): string {
    if (prose === undefined) return "";
    const { index } = prose;
    prose = undefined;
    return messagesEvent({ type: "content_block_stop", index });
  }

  function say(type: "text" | "thinking", delta: Json): string {
    let events = "";
    if (prose?.type !== type) {
      events += closeProse();
      const opened = open(type === "text" ? { type, text: "" } : { type, thinking: "", signature: "" });
      events += opened.events;
      prose = { type, index: opened.index };
    }
    return events + blockDelta(prose.index, delta);
  }

  return {
    start: () =>
      messagesEvent({
        type: "message_start",
        message: {
          ...messageHead(head),
          content: [],
          stop_reason: null,
          stop_sequence: null,
          // Counted when the answer ends; message_delta has the numbers.
          usage: messagesUsage({ prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }),
        },
      }) + messagesEvent({ type: "ping" }),
    text: (delta) => (delta === "" ? "" : say("text", { type: "text_delta", text: delta })),
    reasoning: (delta) =>
      delta === "" || !options.thinking ? "" : say("thinking", { type: "thinking_delta", thinking: delta }),
    toolCall({ index, id = "", name = "", argumentsDelta }: ToolCallPiece) {
      let events = "";
      let at = toolBlocks.get(index);
      if (at === undefined) {
        const opened = open({ type: "tool_use", id, name, input: {} });
        events = closeProse() + opened.events;
        at = opened.index;
        toolBlocks.set(index, at);
      }
      if (argumentsDelta === "") return events;
      return events + blockDelta(at, { type: "input_json_delta", partial_json: argumentsDelta });
    },
    end({ finishReason, usage }: AnswerEnd) {
      let events = closeProse();
      for (const index of toolBlocks.values()) events += messagesEvent({ type: "content_block_stop", index });
      events += messagesEvent({
        type: "message_delta",
        delta: { stop_reason: stopReasonOf(finishReason), stop_sequence: null },
        usage: messagesUsage(usage),
      });
      return events + messagesEvent({ type: "message_stop" });
    },
    fail: (thrown) => messagesEvent(messagesErrorBody(thrown)),
  };
}

function blockDelta(index: number, delta: Json): string {
  return messagesEvent({ type: "content_block_delta", index, delta });
}

/** One event, ready to send; Anthropic's clients pass over an event without its name. */
export function messagesEvent(data: Json & { readonly type: string }): string {
  return `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
}
