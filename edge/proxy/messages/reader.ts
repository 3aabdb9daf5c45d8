import { FulgurError } from "#shared/errors.ts";
import { isObject, parseObject, type Json, type ToolCall } from "../answer.ts";
import type { AnswerHead, AnswerMessage } from "../dialect.ts";
import { messageHead } from "./answer.ts";
import { messagesEvent } from "./stream.ts";
import {
  count,
  fillIn,
  objectOr,
  reasonOf,
  wholeUsage,
  type Gathered,
  type ProviderReader,
} from "../provider/answer.ts";

/**
 * A provider's own messages answer. What it leaves out that Anthropic's clients need is filled in: ids, types, usage, a
 * stop reason, the index of a block.
 * @param options `promptCharacters` stand for the prompt where the provider does not count its tokens
 */
export function messagesReader(head: AnswerHead, options: { readonly promptCharacters: number }): ProviderReader {
  /** By index, as they began. */
  const blocks = new Map<number, Block>();
  let stopReason: string | null = null;
  let prompt: number | undefined;
  let cached: number | undefined;
  let completion: number | undefined;
  let model: string | null = null;
  let started = false;
  let ended = false;
  let lastDelta: (Json & { readonly type: string }) | undefined;

  function takeUsage(usage: unknown): void {
    if (!isObject(usage)) return;
    const read = count(usage["input_tokens"]);
    if (read !== undefined) {
      // Anthropic counts what came from its cache beside the rest.
      cached = count(usage["cache_read_input_tokens"]);
      prompt = read + (cached ?? 0) + (count(usage["cache_creation_input_tokens"]) ?? 0);
    }
    completion = count(usage["output_tokens"]) ?? completion;
  }

  function takeStart(message: Json): void {
    const { model: answered } = message;
    if (typeof answered === "string") model = answered;
    takeUsage(message["usage"]);
  }

  function takeBlock(index: number, block: Json): void {
    blocks.set(index, {
      type: typeof block["type"] === "string" ? block["type"] : "text",
      id: typeof block["id"] === "string" ? block["id"] : "",
      name: typeof block["name"] === "string" ? block["name"] : "",
      text: textOf(block),
    });
  }

  function gathered(): Gathered {
    const message = messageOf([...blocks.values()]);
    const finishReason = stopReason ?? (ended ? defaultStopReason() : null);
    return {
      message,
      finishReason: finishReason === null ? null : (FINISH_REASONS[finishReason] ?? finishReason),
      usage: wholeUsage({ prompt, completion, cached }, { ...options, message }),
      model,
    };
  }

  function defaultStopReason(): string {
    return [...blocks.values()].some(isToolUse) ? "tool_use" : "end_turn";
  }

  function usageNow(): Json {
    const { usage } = gathered();
    return { input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens };
  }

  function startEvent(message: Json): string {
    started = true;
    return messagesEvent({
      type: "message_start",
      message: fillIn(
        { ...message, usage: fillIn(objectOr(message["usage"]), { input_tokens: 0, output_tokens: 0 }) },
        { ...messageHead(head), content: [], stop_reason: null, stop_sequence: null },
      ),
    });
  }

  return {
    whole(answer) {
      takeStart(answer);
      const given = Array.isArray(answer["content"]) ? (answer["content"] as readonly unknown[]) : [];
      const content = given.filter(isObject).map(wholeBlock);
      for (const [index, block] of content.entries()) takeBlock(index, block);
      if (typeof answer["stop_reason"] === "string") stopReason = answer["stop_reason"];
      ended = true;
      return fillIn(
        { ...answer, content, usage: fillIn(objectOr(answer["usage"]), usageNow()) },
        { ...messageHead(head), stop_sequence: null, stop_reason: defaultStopReason() },
      );
    },
    take(data) {
      const event = parseObject(data);
      const type = event?.["type"];
      if (event === undefined || typeof type !== "string") throw failed("holds an event that is no typed object");
      const index = count(event["index"]) ?? Math.max(0, blocks.size - (type === "content_block_start" ? 0 : 1));
      // Whatever comes first, a client must have seen the message begin.
      const opening = started || type === "message_start" || type === "ping" || type === "error" ? "" : startEvent({});
      switch (type) {
        case "error":
          throw failed(`failed: ${reasonOf(event["error"])}`);
        case "message_start": {
          const message = objectOr(event["message"]);
          takeStart(message);
          return startEvent(message);
        }
        case "content_block_start": {
          const block = wholeBlock(objectOr(event["content_block"]));
          takeBlock(index, block);
          return opening + messagesEvent({ ...event, type, index, content_block: block });
        }
        case "content_block_delta": {
          const block = blocks.get(index);
          if (block !== undefined && isObject(event["delta"])) block.text += deltaOf(event["delta"]);
          break;
        }
        case "content_block_stop":
          break;
        case "message_delta": {
          takeUsage(event["usage"]);
          const delta = objectOr(event["delta"]);
          if (typeof delta["stop_reason"] === "string") stopReason = delta["stop_reason"];
          lastDelta = {
            ...event,
            type,
            delta: fillIn(delta, { stop_reason: defaultStopReason(), stop_sequence: null }),
            usage: fillIn(objectOr(event["usage"]), usageNow()),
          };
          return opening;
        }
        case "message_stop":
          ended = true;
          return opening;
        default:
          return opening + messagesEvent({ ...event, type });
      }
      return opening + messagesEvent({ ...event, type, index });
    },
    get ended() {
      return ended;
    },
    ending() {
      ended = true;
      const opening = started ? "" : startEvent({});
      const last = lastDelta ?? {
        type: "message_delta",
        delta: { stop_reason: defaultStopReason(), stop_sequence: null },
        usage: usageNow(),
      };
      return opening + messagesEvent(last) + messagesEvent({ type: "message_stop" });
    },
    get gathered() {
      return gathered();
    },
  };
}

interface Block {
  readonly type: string;
  readonly id: string;
  readonly name: string;
  text: string;
}

const FINISH_REASONS: Readonly<Record<string, string>> = {
  end_turn: "stop",
  stop_sequence: "stop",
  pause_turn: "stop",
  max_tokens: "length",
  model_context_window_exceeded: "length",
  tool_use: "tool_calls",
  refusal: "content_filter",
};

/** A tool call can be answered by its id only. */
function wholeBlock(block: Json): Json {
  return block["type"] === "tool_use"
    ? fillIn({ ...block, id: block["id"] === "" ? null : block["id"] }, { id: newToolUseId(), input: {} })
    : block;
}

function newToolUseId(): string {
  return `toolu_${crypto.randomUUID().replaceAll("-", "")}`;
}

/** What a block says: a text, a thought, or a tool's input as JSON. A stream's tool block begins with an empty input. */
function textOf({ type, text, thinking, input }: Json): string {
  if (type === "tool_use") return isObject(input) && Object.keys(input).length > 0 ? JSON.stringify(input) : "";
  const said = type === "thinking" ? thinking : text;
  return typeof said === "string" ? said : "";
}

function deltaOf({ text, thinking, partial_json: json }: Json): string {
  const piece = text ?? thinking ?? json;
  return typeof piece === "string" ? piece : "";
}

function messageOf(blocks: readonly Block[]): AnswerMessage {
  const said = (type: string): string | null => {
    const texts = blocks.filter((block) => block.type === type).map(({ text }) => text);
    return texts.length === 0 ? null : texts.join("");
  };
  const toolCalls = blocks.filter(isToolUse).map(({ id, name, text }): ToolCall => ({
    id,
    type: "function",
    function: { name, arguments: text === "" ? "{}" : text },
  }));
  return { content: said("text"), reasoning: said("thinking"), toolCalls };
}

function isToolUse({ type }: Block): boolean {
  return type === "tool_use";
}

function failed(what: string): FulgurError {
  return new FulgurError("ERR_UPSTREAM", `the provider's stream ${what}`);
}
