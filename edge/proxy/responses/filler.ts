import { isObject, type Json } from "../answer.ts";
import type { AnswerHead } from "../dialect.ts";
import { responseId } from "./ids.ts";

/**
 * Makes a provider's own answer on `/v1/responses` whole: what is there stays as it is, what clients read without asking
 * and is missing or null is filled in. A stream that ends without its last event is left so: it broke.
 */

/** Fills a whole response object; one that comes whole goes as it came. */
export function fillResponse(response: Json, head: AnswerHead): Json {
  const { output, usage } = response;
  const items: readonly unknown[] = Array.isArray(output) ? output : [];
  return {
    ...withDefaults(response, {
      id: responseId(head.id),
      object: "response",
      created_at: Math.floor(head.startedAt / 1000),
      status: isObject(response["error"])
        ? "failed"
        : isObject(response["incomplete_details"])
          ? "incomplete"
          : "completed",
      model: head.model,
      error: null,
      incomplete_details: null,
      instructions: null,
      metadata: {},
      parallel_tool_calls: true,
      temperature: null,
      tool_choice: "auto",
      tools: [],
      top_p: null,
    }),
    output: items.map((item, index) => (isObject(item) ? fillItem(item, { head, index }) : item)),
    usage: isObject(usage) ? fillUsage(usage) : null,
  };
}

/** A filler of one stream's events: the `data` of each, parsed and in order → the same, whole. */
export function responseEventFiller(head: AnswerHead): (event: Json) => Json {
  /** The items as they were given on, by output index. */
  const items = new Map<number, Json>();
  /** Where events without an output index belong. */
  let open: number | undefined;
  let sequence = 0;

  /** An item that comes again keeps the ids that it was given on with. */
  function known(item: unknown, index: number): unknown {
    return isObject(item) ? withDefaults(item, idsOf(items.get(index))) : item;
  }

  function itemFields({ type, item, part, output_index: outputIndex, ...event }: Json): Json {
    const isNew = open === undefined || type === ADDED;
    const index = typeof outputIndex === "number" ? outputIndex : isNew ? items.size : (open ?? 0);
    open = type === DONE ? undefined : index;
    if (isObject(item)) {
      const whole = fillItem(withDefaults(item, idsOf(items.get(index))), { head, index, isBegun: type === ADDED });
      items.set(index, whole);
      return { output_index: index, item: whole };
    }
    return {
      ...withDefaults(event, {
        item_id: items.get(index)?.["id"] ?? newItemId("msg", { head, index }),
        ...(PART_EVENT.test(String(type)) ? { content_index: 0 } : {}),
        ...(TEXT_EVENT.test(String(type)) ? { logprobs: [] } : {}),
      }),
      output_index: index,
      ...(isObject(part) ? { part: fillPart(part) } : {}),
    };
  }

  return (event) => {
    const { type, response } = event;
    const sent = withDefaults(event, { sequence_number: sequence });
    sequence += 1;
    if (isObject(response)) {
      const output: readonly unknown[] = Array.isArray(response["output"]) ? response["output"] : [];
      const status = STATUS.exec(String(type))?.[1] ?? "in_progress";
      const given = withDefaults({ ...response, output: output.map(known) }, { status });
      return { ...sent, response: fillResponse(given, head) };
    }
    const isOfItem = isObject(event["item"]) || ITEM_EVENT.test(String(type));
    return isOfItem ? { ...sent, ...itemFields(event) } : sent;
  };
}

const ADDED = "response.output_item.added";
const DONE = "response.output_item.done";
const STATUS = /^response\.(completed|incomplete|failed)$/;
const ITEM_EVENT = /^response\.(content_part|output_text|refusal|reasoning\w*|function_call_arguments)\./;
const PART_EVENT = /^response\.(content_part|output_text|refusal|reasoning_text)\./;
const TEXT_EVENT = /^response\.output_text\.(delta|done)$/;

interface ItemOptions {
  readonly head: AnswerHead;
  /** Its place in the output. */
  readonly index: number;
  /** Whether it only begins. */
  readonly isBegun?: boolean;
}

function fillItem(item: Json, { head, index, isBegun = false }: ItemOptions): Json {
  const { type = "message", content, arguments: text } = item;
  const status = isBegun ? "in_progress" : "completed";
  if (type === "message") {
    const said = typeof content === "string" ? [{ text: content }] : content;
    const parts: readonly unknown[] = Array.isArray(said) ? said : [];
    return {
      ...withDefaults(item, { type, id: newItemId("msg", { head, index }), role: "assistant", status }),
      content: parts.map((part) => (isObject(part) ? fillPart(part) : part)),
    };
  }
  if (type === "function_call") {
    const id = nonEmpty(item["id"]) ?? newItemId("fc", { head, index });
    const filled = withDefaults(item, { name: "", status });
    const callId = nonEmpty(item["call_id"]) ?? `call_${id}`;
    return { ...filled, id, call_id: callId, arguments: typeof text === "string" ? text : textOf(text) };
  }
  if (type === "reasoning") return withDefaults(item, { id: newItemId("rs", { head, index }), summary: [] });
  return item;
}

function textOf(value: unknown): string {
  return (value ?? null) === null ? "" : JSON.stringify(value);
}

function fillPart(part: Json): Json {
  const { type = "output_text" } = part;
  return type === "output_text" ? withDefaults(part, { type, text: "", annotations: [] }) : part;
}

function fillUsage(usage: Json): Json {
  const { input_tokens: input, output_tokens: output } = usage;
  return withDefaults(usage, {
    input_tokens: 0,
    output_tokens: 0,
    total_tokens: (typeof input === "number" ? input : 0) + (typeof output === "number" ? output : 0),
    input_tokens_details: { cached_tokens: 0, cache_write_tokens: 0 },
    output_tokens_details: { reasoning_tokens: 0 },
  });
}

/** Not of the form that leads back to an answer of ours: what a provider said is the provider's to look up. */
function newItemId(kind: "rs" | "msg" | "fc", { head, index }: ItemOptions): string {
  return `${kind}_${responseId(head.id).slice("resp_".length)}_at_${index}`;
}

function idsOf(item: Json | undefined): Json {
  if (item === undefined) return {};
  const { id, call_id: callId } = item;
  return { id, ...(callId === undefined ? {} : { call_id: callId }) };
}

function nonEmpty(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function withDefaults(value: Json, defaults: Json): Json {
  const missing = Object.entries(defaults).filter(([name]) => (value[name] ?? null) === null);
  return { ...value, ...Object.fromEntries(missing) };
}
