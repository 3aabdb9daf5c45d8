import { isObject, type Json } from "../answer.ts";
import { completionsHead } from "../completions/answer.ts";
import type { AnswerHead, AnswerMessage } from "../dialect.ts";
import {
  chunkOf,
  countedIn,
  failed,
  fillIn,
  objectOr,
  wholeUsage,
  type Gathered,
  type PartlyCounted,
  type ProviderReader,
} from "./answer.ts";
import type { ChatReaderOptions } from "./chat.ts";
import { DONE, event } from "../sse.ts";

/** A provider's own answer to a completion request, with what clients need and it left out. */
export function completionsReader(head: AnswerHead, options: ChatReaderOptions): ProviderReader {
  let text: string | null = null;
  let finishReason: string | null = null;
  let counted: PartlyCounted = {};
  let model: string | null = null;
  let usageSeen = false;
  let ended = false;
  let held = "";
  let heldUsage = "";
  const answerHead = completionsHead(head);

  function takeFacts(answer: Json): void {
    if (typeof answer["model"] === "string") model = answer["model"];
    counted = countedIn(answer["usage"], counted);
    usageSeen ||= isObject(answer["usage"]);
  }

  function wholeChoices(answer: Json, defaultReason: string | null): Json[] {
    const given: readonly unknown[] = Array.isArray(answer["choices"]) ? answer["choices"] : [];
    return given.filter(isObject).map((choice, at) => {
      const whole = fillIn(choice, { index: at, text: "" });
      whole["finish_reason"] ??= defaultReason;
      whole["logprobs"] ??= null;
      if (whole["index"] === 0) {
        if (typeof whole["text"] === "string") text = (text ?? "") + whole["text"];
        if (typeof whole["finish_reason"] === "string") finishReason = whole["finish_reason"];
      }
      return whole;
    });
  }

  function gathered(): Gathered {
    const message: AnswerMessage = { content: text, reasoning: null, toolCalls: [] };
    return { message, finishReason, usage: wholeUsage(counted, { ...options, message }), model };
  }

  return {
    whole(answer) {
      takeFacts(answer);
      const choices = wholeChoices(answer, "stop");
      if (choices.length === 0) throw failed("answer has no choice");
      ended = true;
      const usage = fillIn(objectOr(answer["usage"]), { ...gathered().usage });
      return fillIn({ ...answer, choices, usage }, answerHead);
    },
    take(data) {
      if (data === "[DONE]") {
        ended = true;
        return "";
      }
      const chunk = chunkOf(data);
      takeFacts(chunk);
      const choices = wholeChoices(chunk, null);
      const sent = event(JSON.stringify(fillIn({ ...chunk, choices }, answerHead)));
      if (choices.length === 0) heldUsage += sent;
      else if (choices.every(({ finish_reason: finish }) => finish === null)) return sent;
      else held += sent;
      return "";
    },
    get ended() {
      return ended;
    },
    ending() {
      ended = true;
      if (finishReason === null) {
        finishReason = "stop";
        const choice = { index: 0, text: "", logprobs: null, finish_reason: finishReason };
        held += event(JSON.stringify({ ...answerHead, choices: [choice] }));
      }
      if (options.includeUsage && !usageSeen) {
        heldUsage += event(JSON.stringify({ ...answerHead, choices: [], usage: gathered().usage }));
      }
      return held + heldUsage + DONE;
    },
    get gathered() {
      return gathered();
    },
  };
}
