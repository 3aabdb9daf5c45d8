import { firstChoice, isObject, parseObject, type Json } from "../answer.ts";
import { broken, newToolCallId } from "../call.ts";
import type { Capture } from "../capture.ts";
import type { AnswerEncoder } from "../dialect.ts";
import { reasonOf } from "../provider/answer.ts";
import type { Rewriter } from "../stream.ts";
import { MessageGatherer } from "./pieces.ts";

export interface TranslatingOptions {
  /** An upstream's chunk as a chat's. */
  readonly asChat?: (chunk: Json) => Json;
  /** Settles what the record still lacks; throws where the answer is not whole. `ended`: whether [DONE] has come. */
  readonly settle: (ended: boolean) => void;
}

/** Chat chunks of an upstream as the events of another dialect, gathered for the record on the way. */
export function translating(
  capture: Capture,
  encoder: AnswerEncoder,
  { asChat = (chunk) => chunk, settle }: TranslatingOptions,
): Rewriter {
  const gatherer = new MessageGatherer(newToolCallId);
  let ended = false;
  let begun = false;

  function opening(): string {
    if (begun) return "";
    begun = true;
    return encoder.start();
  }

  function take(data: string): string {
    const given = parseObject(data);
    if (given === undefined) throw broken(capture, "its stream holds an event that is not a JSON object");
    if (isObject(given["error"])) throw broken(capture, `its stream failed: ${reasonOf(given["error"])}`);
    const chunk = asChat(given);
    const choice = firstChoice(chunk);
    capture.takeChunk(chunk, choice);
    if (choice === undefined) return "";
    const pieces = gatherer.take(isObject(choice["delta"]) ? choice["delta"] : {});
    let text = opening() + encoder.reasoning(pieces.reasoning);
    text += encoder.text(pieces.text, isObject(choice["logprobs"]) ? choice["logprobs"] : null);
    for (const piece of pieces.toolCalls) text += encoder.toolCall(piece);
    return text;
  }

  function gather(): void {
    const { content, reasoning, toolCalls } = gatherer.message;
    capture.content = content;
    capture.reasoning = reasoning;
    capture.toolCalls.splice(0, Infinity, ...toolCalls);
    if (capture.finishReason === "stop" && toolCalls.length > 0) capture.finishReason = "tool_calls";
  }

  return {
    get ended() {
      return ended;
    },
    take(events) {
      let text = "";
      try {
        for (const data of events) {
          ended ||= data === "[DONE]";
          if (ended) break;
          text += take(data);
        }
      } finally {
        // What has come is recorded too where the rest never does.
        gather();
      }
      return text;
    },
    close: () => settle(ended),
    ending: () => opening() + encoder.end({ finishReason: capture.finishReason ?? "stop", usage: capture.wholeUsage }),
    fail: (thrown) => encoder.fail(thrown),
  };
}
