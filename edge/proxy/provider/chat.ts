import { firstChoice, isObject, type Json } from "../answer.ts";
import { newToolCallId } from "../call.ts";
import { wholeToolCalls } from "../capture.ts";
import type { AnswerHead, AnswerMessage } from "../dialect.ts";
import {
  count,
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
import { DONE, event } from "../sse.ts";
import { MessageGatherer, type Pieces } from "../translated/pieces.ts";

export interface ChatReaderOptions {
  /** Stand for the prompt where the provider does not count its tokens. */
  readonly promptCharacters: number;
  /** Whether the client asked for usage at the end of its stream. */
  readonly includeUsage: boolean;
}

/**
 * A provider's own chat answer. What it leaves out that clients need is filled in: id, object, model, the index of choices
 * and tool calls, ids and types of tool calls, the first delta's role, a finish reason, usage.
 */
export function chatReader(head: AnswerHead, options: ChatReaderOptions): ProviderReader {
  /** By choice; what is recorded is the first one's. */
  const choices = new Map<number, StreamedChoice>();
  let message: AnswerMessage = { content: null, reasoning: null, toolCalls: [] };
  let finishReason: string | null = null;
  let counted: PartlyCounted = {};
  let model: string | null = null;
  let usageSeen = false;
  let ended = false;
  let held = "";
  let heldUsage = "";

  const created = Math.floor(head.startedAt / 1000);
  const chunkHead = { id: head.id, object: "chat.completion.chunk", created, model: head.model };

  function takeFacts(answer: Json): void {
    if (typeof answer["model"] === "string") model = answer["model"];
    counted = countedIn(answer["usage"], counted);
  }

  function gathered(): Gathered {
    return { message, finishReason, usage: wholeUsage(counted, { ...options, message }), model };
  }

  function streamed(index: number): StreamedChoice {
    const known = choices.get(index) ?? {
      gatherer: new MessageGatherer(newToolCallId),
      roleSent: false,
      finishReason: null,
    };
    choices.set(index, known);
    return known;
  }

  /** A chunk's choice as it is passed on. */
  function wholeChoice(given: Json, at: number): Json {
    const index = count(given["index"]) ?? at;
    const choice = streamed(index);
    // Some send a whole message in place of a delta.
    const { message: said, ...rest } = given;
    const delta = isObject(given["delta"]) ? given["delta"] : objectOr(said);
    const pieces = choice.gatherer.take(delta);
    const called = Array.isArray(delta["tool_calls"]) ? { tool_calls: wholePieces(delta["tool_calls"], pieces) } : {};
    const role = choice.roleSent ? {} : { role: "assistant" };
    choice.roleSent = true;
    if (typeof given["finish_reason"] === "string") choice.finishReason = given["finish_reason"];
    if (index === 0) ({ message } = choice.gatherer);
    if (index === 0) ({ finishReason } = choice);
    return { ...rest, index, delta: { ...role, ...delta, ...called }, finish_reason: given["finish_reason"] ?? null };
  }

  return {
    whole(answer) {
      takeFacts(answer);
      const given: readonly unknown[] = Array.isArray(answer["choices"]) ? answer["choices"] : [];
      if (given.length === 0) throw failed("answer has no choice");
      const wholeChoices = given.filter(isObject).map((choice, index) => {
        const toolCalls = wholeToolCalls(objectOr(choice["message"])["tool_calls"], newToolCallId);
        return {
          ...fillIn(choice, { index, finish_reason: toolCalls.length > 0 ? "tool_calls" : "stop" }),
          message: {
            content: null,
            ...objectOr(choice["message"]),
            role: "assistant",
            ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
          },
        };
      });
      const first = firstChoice({ choices: wholeChoices });
      const said = objectOr(first?.["message"]);
      const gatherer = new MessageGatherer(newToolCallId);
      gatherer.take(said);
      ({ message } = gatherer);
      finishReason = typeof first?.["finish_reason"] === "string" ? first["finish_reason"] : null;
      ended = true;
      return fillIn(
        { ...answer, choices: wholeChoices, usage: fillIn(objectOr(answer["usage"]), { ...gathered().usage }) },
        { id: head.id, object: "chat.completion", created, model: head.model },
      );
    },
    take(data) {
      if (data === "[DONE]") {
        ended = true;
        return "";
      }
      const chunk = chunkOf(data);
      takeFacts(chunk);
      const given: readonly unknown[] = Array.isArray(chunk["choices"]) ? chunk["choices"] : [];
      const wholeChoices = given.filter(isObject).map(wholeChoice);
      const isCounted = isObject(chunk["usage"]);
      usageSeen ||= isCounted;
      const whole = fillIn({ ...chunk, choices: wholeChoices }, { ...chunkHead });
      if (isCounted) whole["usage"] = fillIn(objectOr(chunk["usage"]), { ...gathered().usage });
      const text = event(JSON.stringify(whole));
      if (wholeChoices.length === 0) heldUsage += text;
      else if (wholeChoices.every(({ finish_reason: finish }) => finish === null)) return text;
      else held += text;
      return "";
    },
    get ended() {
      return ended;
    },
    ending() {
      ended = true;
      if (choices.size === 0) streamed(0);
      let text = held;
      for (const [index, { gatherer, roleSent, finishReason: finish }] of choices) {
        if (finish !== null) continue;
        const defaultReason = gatherer.message.toolCalls.length > 0 ? "tool_calls" : "stop";
        if (index === 0) finishReason = defaultReason;
        const delta = roleSent ? {} : { role: "assistant", content: "" };
        text += event(JSON.stringify({ ...chunkHead, choices: [{ index, delta, finish_reason: defaultReason }] }));
      }
      if (options.includeUsage && !usageSeen) {
        heldUsage += event(JSON.stringify({ ...chunkHead, choices: [], usage: gathered().usage }));
      }
      return text + heldUsage + DONE;
    },
    get gathered() {
      return gathered();
    },
  };
}

interface StreamedChoice {
  readonly gatherer: MessageGatherer;
  roleSent: boolean;
  finishReason: string | null;
}

/** The tool calls of a delta with what the gatherer made of them. */
function wholePieces(given: readonly unknown[], pieces: Pieces): Json[] {
  return given.filter(isObject).map((piece, at) => {
    const made = pieces.toolCalls[at];
    const called = objectOr(piece["function"]);
    return {
      ...piece,
      index: made?.index ?? at,
      ...(made?.id === undefined ? {} : { id: made.id, type: "function" }),
      function: { ...called, arguments: made?.argumentsDelta ?? "" },
    };
  });
}
