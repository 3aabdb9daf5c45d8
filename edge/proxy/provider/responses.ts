import { isObject, numberIn, parseObject, type Json } from "../answer.ts";
import { newToolCallId } from "../call.ts";
import type { AnswerHead } from "../dialect.ts";
import { failed, count, fillIn, objectOr, reasonOf, wholeUsage, type Gathered, type ProviderReader } from "./answer.ts";
import { itemId, responseId, type ItemKind } from "../responses/ids.ts";
import { readResponse } from "../responses/reader.ts";

/**
 * A provider's own answer on `/v1/responses`. What it leaves out that clients need is filled in: ids and status of the
 * response and its items, annotations, usage; in a stream the numbers of events and items, and the events that begin and
 * end what only came in deltas.
 * @param options `promptCharacters` stand for the prompt where the provider does not count its tokens
 */
export function responsesReader(head: AnswerHead, options: { readonly promptCharacters: number }): ProviderReader {
  /** By output index, as they began. */
  const items = new Map<number, StreamedItem>();
  let response: Json | undefined;
  let started = false;
  let ended = false;
  let sequence = 0;
  let held: Json | undefined;

  function wholeItem(given: Json, at: number): Json {
    const type = typeof given["type"] === "string" ? given["type"] : "message";
    const kind = KINDS[type];
    const item = fillIn(given, {
      type,
      status: "completed",
      ...(kind === undefined ? {} : { id: itemId(head.id, kind, at) }),
    });
    if (type === "message") {
      item["role"] ??= "assistant";
      item["content"] = wholeParts(item["content"]);
    }
    if (type === "function_call") {
      if (typeof item["call_id"] !== "string" || item["call_id"] === "") item["call_id"] = newToolCallId();
      if (typeof item["arguments"] !== "string") item["arguments"] = JSON.stringify(item["arguments"] ?? {});
    }
    if (type === "reasoning") item["summary"] ??= [];
    return item;
  }

  function wholeResponse(given: Json, status: string): Json {
    const output: readonly unknown[] = Array.isArray(given["output"]) ? given["output"] : [];
    const whole = fillIn(
      { ...given, output: output.filter(isObject).map(wholeItem) },
      {
        id: responseId(head.id),
        object: "response",
        created_at: Math.floor(head.startedAt / 1000),
        model: head.model,
        status,
        parallel_tool_calls: true,
        tool_choice: "auto",
        tools: [],
        metadata: {},
      },
    );
    for (const key of NULLABLE) whole[key] ??= null;
    return whole;
  }

  /** The response at its end, with its usage. */
  function finished(given: Json, status: string): Json {
    const whole = wholeResponse(given, status);
    response = whole;
    const { usage } = gathered();
    const counted = fillIn(objectOr(whole["usage"]), {
      input_tokens: usage.prompt_tokens,
      output_tokens: usage.completion_tokens,
      total_tokens: usage.total_tokens,
      input_tokens_details: {},
      output_tokens_details: {},
    });
    counted["input_tokens_details"] = fillIn(objectOr(counted["input_tokens_details"]), { cached_tokens: 0 });
    counted["output_tokens_details"] = fillIn(objectOr(counted["output_tokens_details"]), { reasoning_tokens: 0 });
    whole["usage"] = counted;
    return whole;
  }

  function gathered(): Gathered {
    const given = response ?? { output: [...items.values()].map(({ item }) => item) };
    const { message, finishReason, model } = readResponse(given);
    const counted = objectOr(given["usage"]);
    const usage = wholeUsage(
      {
        prompt: count(counted["input_tokens"]),
        completion: count(counted["output_tokens"]),
        cached: numberIn(counted["input_tokens_details"], "cached_tokens"),
        reasoning: numberIn(counted["output_tokens_details"], "reasoning_tokens"),
      },
      { ...options, message },
    );
    return { message, finishReason: ended ? finishReason : null, usage, model };
  }

  function emit(event: Json & { readonly type: string }): string {
    const data = JSON.stringify({ ...event, sequence_number: sequence });
    sequence += 1;
    return `event: ${event.type}\ndata: ${data}\n\n`;
  }

  /** Whatever comes first, a client must have seen the response begin. */
  function opening(): string {
    if (started) return "";
    started = true;
    return emit({ type: "response.created", response: wholeResponse({ output: [] }, "in_progress") });
  }

  /** The item that an event is about; begun where the provider did not say so. */
  function itemOf(event: Json, type: "message" | "function_call"): { readonly at: number; readonly events: string } {
    const id = event["item_id"];
    const at =
      count(event["output_index"]) ??
      lastIndex(({ item }) => id !== undefined && item["id"] === id) ??
      lastIndex(({ item, done }) => !done && item["type"] === type) ??
      items.size;
    if (items.has(at)) return { at, events: "" };
    const given = type === "message" ? { type, content: [] } : { type, name: event["name"] ?? "", arguments: "" };
    return { at, events: begin(at, { ...given, id }) };
  }

  function lastIndex(wanted: (item: StreamedItem) => boolean): number | undefined {
    return [...items].findLast(([, item]) => wanted(item))?.[0];
  }

  function begin(at: number, given: Json): string {
    // Its arguments are yet to come.
    const whole = given["type"] === "function_call" ? fillIn(given, { arguments: "" }) : given;
    const item = { ...wholeItem(whole, at), status: "in_progress" };
    items.set(at, { item, partBegun: false, done: false });
    return emit({ type: "response.output_item.added", output_index: at, item });
  }

  function takeText(event: Json): string {
    const { at, events } = itemOf(event, "message");
    const streamed = items.get(at);
    if (streamed === undefined) return events;
    const place = { item_id: streamed.item["id"], output_index: at, content_index: count(event["content_index"]) ?? 0 };
    let text = events;
    if (!streamed.partBegun) {
      streamed.partBegun = true;
      text += emit({
        type: "response.content_part.added",
        ...place,
        part: { type: "output_text", text: "", annotations: [] },
      });
    }
    const [part] = wholeParts(streamed.item["content"]);
    const said = textOf(part?.["text"]) + textOf(event["delta"]);
    streamed.item["content"] = [{ type: "output_text", annotations: [], ...part, text: said }];
    return text + emit({ ...event, type: "response.output_text.delta", ...place });
  }

  function takeArguments(event: Json): string {
    const { at, events } = itemOf(event, "function_call");
    const streamed = items.get(at);
    if (streamed === undefined) return events;
    streamed.item["arguments"] = textOf(streamed.item["arguments"]) + textOf(event["delta"]);
    const place = { item_id: streamed.item["id"], output_index: at };
    return events + emit({ ...event, type: "response.function_call_arguments.delta", ...place });
  }

  function takeItem(event: Json, type: string): string {
    const given = objectOr(event["item"]);
    const isNew = type === "response.output_item.added";
    const open = isNew ? undefined : lastIndex(({ done }) => !done);
    const at = count(event["output_index"]) ?? open ?? items.size;
    if (isNew) return begin(at, given);
    const begun = items.has(at) ? "" : begin(at, { ...given, content: [] });
    const before = items.get(at)?.item;
    const item = wholeItem(withIds(given, before), at);
    items.set(at, { item, partBegun: true, done: true });
    return begun + emit({ ...event, type, output_index: at, item });
  }

  /** Ends the items that the provider did not. */
  function closing(): string {
    let events = "";
    for (const [at, streamed] of items) {
      if (streamed.done) continue;
      streamed.done = true;
      streamed.item["status"] = "completed";
      const { id, type } = streamed.item;
      if (type === "function_call") {
        const { name, arguments: text } = streamed.item;
        events += emit({
          type: "response.function_call_arguments.done",
          item_id: id,
          output_index: at,
          name,
          arguments: text,
        });
      } else if (type === "message") {
        const [part] = wholeParts(streamed.item["content"]);
        const place = { item_id: id, output_index: at, content_index: 0 };
        events += emit({ type: "response.output_text.done", ...place, text: part?.["text"] ?? "", logprobs: [] });
        events += emit({ type: "response.content_part.done", ...place, part });
      }
      events += emit({ type: "response.output_item.done", output_index: at, item: streamed.item });
    }
    return events;
  }

  return {
    whole(answer) {
      if (isObject(answer["error"]) && answer["output"] === undefined) {
        throw failed(`answer is a failure: ${reasonOf(answer["error"])}`);
      }
      ended = true;
      const { output_text: text, output } = answer;
      const said = !Array.isArray(output) && typeof text === "string";
      return finished(said ? { ...answer, output: [{ type: "message", content: text }] } : answer, "completed");
    },
    take(data) {
      if (data === "[DONE]") {
        ended = true;
        return "";
      }
      const event = parseObject(data);
      const type = event?.["type"];
      if (event === undefined || typeof type !== "string")
        throw failed("stream holds an event that is no typed object");
      switch (type) {
        case "error":
          throw failed(`stream failed: ${reasonOf(event["error"] ?? event["message"])}`);
        case "response.created":
        case "response.in_progress":
          started = true;
          return emit({ ...event, type, response: wholeResponse(objectOr(event["response"]), "in_progress") });
        case "response.completed":
        case "response.incomplete":
        case "response.failed":
          ended = true;
          held = { ...event, type };
          return opening();
        case "response.output_item.added":
        case "response.output_item.done":
          return opening() + takeItem(event, type);
        case "response.output_text.delta":
          return opening() + takeText(event);
        case "response.function_call_arguments.delta":
          return opening() + takeArguments(event);
        case "response.content_part.added": {
          const begun = opening();
          const { at, events } = itemOf(event, "message");
          const streamed = items.get(at);
          if (streamed !== undefined) streamed.partBegun = true;
          return begun + events + emit({ ...event, type, output_index: at, part: wholePart(objectOr(event["part"])) });
        }
        default:
          return opening() + emit({ ...event, type });
      }
    },
    get ended() {
      return ended;
    },
    ending() {
      ended = true;
      const events = opening() + closing();
      const given = objectOr(held?.["response"]);
      const output: readonly unknown[] = Array.isArray(given["output"]) ? given["output"] : [];
      const seen = [...items.values()].map(({ item }) => item);
      const type = typeof held?.["type"] === "string" ? held["type"] : "response.completed";
      const status = type.slice(type.indexOf(".") + 1);
      // The provider's own items are whole; those that were streamed have the ids that the client has seen.
      const own = output.filter(isObject).map((item, at) => withIds(item, items.get(at)?.item));
      const whole = finished({ ...given, output: own.length > 0 ? own : seen }, status);
      return events + emit({ ...held, type, response: whole });
    },
    get gathered() {
      return gathered();
    },
  };
}

interface StreamedItem {
  readonly item: Json;
  partBegun: boolean;
  done: boolean;
}

const KINDS: Readonly<Record<string, ItemKind>> = { message: "msg", function_call: "fc", reasoning: "rs" };

/** Fields that clients read without asking whether they are there. */
const NULLABLE = ["error", "incomplete_details", "instructions", "temperature", "top_p"];

/** An item with the ids that it had when it began, where it does not repeat them. */
function withIds(item: Json, before: Json | undefined): Json {
  return fillIn(item, {
    ...(before?.["id"] === undefined ? {} : { id: before["id"] }),
    ...(before?.["call_id"] === undefined ? {} : { call_id: before["call_id"] }),
  });
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function wholeParts(content: unknown): Json[] {
  if (typeof content === "string") return [wholePart({ text: content })];
  const parts: readonly unknown[] = Array.isArray(content) ? content : [];
  return parts.filter(isObject).map(wholePart);
}

function wholePart(part: Json): Json {
  const type = part["type"] ?? "output_text";
  return type === "output_text" ? fillIn(part, { type, text: "", annotations: [] }) : part;
}
