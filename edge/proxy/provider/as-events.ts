import { isObject, type Json } from "../answer.ts";
import type { DialectName } from "../dialect.ts";

/**
 * A whole answer as the events that a stream of its dialect would have had: some providers take no notice of `stream`, and
 * hardly a client reads JSON in place of events.
 */
export function asEvents(dialect: DialectName, answer: Json): readonly Json[] {
  const { error } = answer;
  if (isObject(error)) return [{ type: "error", error }];
  if (typeof error === "string") return [{ type: "error", error: { message: error } }];
  switch (dialect) {
    case "responses":
      return responseEvents(answer);
    case "messages":
      return messageEvents(answer);
    default:
      return chunks(answer);
  }
}

/** Of a chat or a completion: one with everything that is said, and one that counts it. */
function chunks({ object: _object, usage, ...answer }: Json): Json[] {
  const choices = objectsOf(answer["choices"]).map(({ message, ...choice }) =>
    message === undefined ? choice : { ...choice, delta: message },
  );
  return [{ ...answer, choices }, ...(isObject(usage) ? [{ ...answer, choices: [], usage }] : [])];
}

function responseEvents(answer: Json): Json[] {
  const { output, output_text: text, status } = answer;
  const items = Array.isArray(output) ? objectsOf(output) : [{ type: "message", content: [{ text }] }];
  const events = items.flatMap((item, at): Json[] => {
    const place = { output_index: at };
    const { type = "message", content, arguments: args } = item;
    if (type === "function_call") {
      return [
        { type: "response.output_item.added", ...place, item: { ...item, arguments: "" } },
        { type: "response.function_call_arguments.delta", ...place, delta: textOf(args) },
      ];
    }
    const said = type === "message" ? saidIn(content) : undefined;
    if (said === undefined) return [{ type: "response.output_item.done", ...place, item }];
    return [
      { type: "response.output_item.added", ...place, item: { ...item, type, content: [] } },
      { type: "response.output_text.delta", ...place, delta: said },
    ];
  });
  const ending = status === "incomplete" || status === "failed" ? status : "completed";
  return [...events, { type: `response.${ending}`, response: { ...answer, output: items } }];
}

/** The text of a message that is text alone. */
function saidIn(content: unknown): string | undefined {
  if (typeof content === "string") return content;
  const parts = objectsOf(content);
  if (parts.some(({ type = "output_text" }) => type !== "output_text")) return undefined;
  return parts.map(({ text }) => (typeof text === "string" ? text : "")).join("");
}

function messageEvents(answer: Json): Json[] {
  const { content, stop_reason: reason, stop_sequence: sequence, usage } = answer;
  const blocks = typeof content === "string" ? [{ type: "text", text: content }] : objectsOf(content);
  return [
    { type: "message_start", message: { ...answer, content: [], stop_reason: null } },
    ...blocks.flatMap((block, index) => blockEvents(block, index)),
    { type: "message_delta", delta: { stop_reason: reason, stop_sequence: sequence }, usage },
    { type: "message_stop" },
  ];
}

function blockEvents(block: Json, index: number): Json[] {
  const { type = "text", text, thinking, input } = block;
  const stop = { type: "content_block_stop", index };
  const start = (empty: Json): Json => ({
    type: "content_block_start",
    index,
    content_block: { ...block, type, ...empty },
  });
  const delta = (said: Json): Json => ({ type: "content_block_delta", index, delta: said });
  switch (type) {
    case "text":
      return [start({ text: "" }), delta({ type: "text_delta", text }), stop];
    case "thinking": {
      const { signature = "" } = block;
      const signed = delta({ type: "signature_delta", signature });
      return [start({ thinking: "", signature: "" }), delta({ type: "thinking_delta", thinking }), signed, stop];
    }
    case "tool_use":
      return [start({ input: {} }), delta({ type: "input_json_delta", partial_json: textOf(input) }), stop];
    default:
      return [start({}), stop];
  }
}

/** Arguments as text: some send them as an object. */
function textOf(given: unknown): string {
  return typeof given === "string" ? given : JSON.stringify(given ?? {});
}

function objectsOf(given: unknown): Json[] {
  return Array.isArray(given) ? (given as readonly unknown[]).filter(isObject) : [];
}
