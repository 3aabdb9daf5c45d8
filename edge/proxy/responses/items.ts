import { FulgurError } from "#shared/errors.ts";
import { isObject, type Json, type ToolCall } from "../answer.ts";
import type { ChatMessage, ParseOptions } from "../dialect.ts";
import { readItemId, type KnownItem } from "./ids.ts";

export interface InputOptions extends ParseOptions {
  /**
   * The assistant's message of one earlier response. A client that refers to items by id does so in every request, and the
   * history of each would be read through its own references: give this, and the work does not double with each turn.
   */
  readonly answer?: (responseId: string) => Promise<ChatMessage>;
}

/**
 * A response's `input` as chat messages. What one answer gave as several items (reasoning, a message, function calls) is
 * one assistant's message again: by the ids of the items where they are ours, else because they stand side by side.
 *
 * Of a reasoning item its text is kept; a summary or an encrypted text is no text of a policy and has no place in its prompt.
 * @throws FulgurError ERR_INVALID_REQUEST naming the item that a policy cannot be shown
 */
export async function readInput(
  input: string | readonly unknown[],
  { history, answer = async (responseId) => (await history(responseId)).at(-1) ?? NOTHING }: InputOptions,
): Promise<readonly ChatMessage[]> {
  if (typeof input === "string") return [{ role: "user", content: input }];
  const answers = new Map<string, Promise<ChatMessage>>();
  const answerOf = (responseId: string): Promise<ChatMessage> => {
    const found = answers.get(responseId) ?? answer(responseId);
    answers.set(responseId, found);
    return found;
  };
  const conversation = new Conversation();
  for (const [i, item] of input.entries()) {
    const path = `input.${i}`;
    if (!isObject(item)) throw unusable(path, "an item is an object");
    if (isReference(item)) await addReferred(conversation, item, { path, answerOf });
    else addItem(conversation, item, path);
  }
  return conversation.messages;
}

const NOTHING: ChatMessage = { role: "assistant", content: null };

function addItem(conversation: Conversation, item: Json, path: string): void {
  const responseId = readItemId(item["id"])?.responseId;
  const type = item["type"] ?? "message";
  switch (type) {
    case "message": {
      const { role } = item;
      if (role === "assistant") conversation.addText(textOf(item["content"], `${path}.content`), responseId);
      else if (role === "user" || role === "system" || role === "developer") {
        conversation.add({ role, content: contentOf(item["content"], `${path}.content`) });
      } else throw unusable(`${path}.role`, "user, assistant, system and developer are known");
      return;
    }
    case "function_call":
      conversation.addCall(
        {
          id: stringOf(item["call_id"], `${path}.call_id`),
          type: "function",
          function: {
            name: stringOf(item["name"], `${path}.name`),
            arguments: stringOf(item["arguments"], `${path}.arguments`),
          },
        },
        responseId,
      );
      return;
    case "function_call_output":
      conversation.add({
        role: "tool",
        tool_call_id: stringOf(item["call_id"], `${path}.call_id`),
        content: contentOf(item["output"], `${path}.output`),
      });
      return;
    case "reasoning":
      conversation.addReasoning(reasoningOf(item["content"]), responseId);
      return;
    default:
      throw unusable(
        `${path}.type`,
        `a policy is shown messages, function calls, their outputs and reasoning, not ${named(type)}; leave the item out`,
      );
  }
}

/** OpenAI lets a reference leave out its type. */
function isReference(item: Json): boolean {
  const { type } = item;
  return type === "item_reference" || ((type ?? null) === null && item["role"] === undefined && "id" in item);
}

interface ReferenceOptions {
  readonly path: string;
  /** The assistant's message of an earlier response. */
  readonly answerOf: (responseId: string) => Promise<ChatMessage>;
}

async function addReferred(
  conversation: Conversation,
  item: Json,
  { path, answerOf }: ReferenceOptions,
): Promise<void> {
  const known = readItemId(item["id"]);
  if (known === undefined) {
    throw unusable(`${path}.id`, `${named(item["id"])} is no item of a response of this edge; send the item itself`);
  }
  const { kind, responseId } = known;
  const answer = await answerOf(responseId);
  const missing = unusable(`${path}.id`, `${responseId} has no item ${named(item["id"])}; send the item itself`);
  if (kind === "fc") {
    const call = callOf(answer, known);
    if (call === undefined) throw missing;
    conversation.addCall(call, responseId);
    return;
  }
  // A stream may have given a text in pieces, each an item; the record has it whole, and it is said once.
  const text = answer[kind === "msg" ? "content" : "reasoning_content"];
  if (typeof text !== "string") throw missing;
  if (kind === "msg" && !conversation.hasText(responseId)) conversation.addText(text, responseId);
  if (kind === "rs" && !conversation.hasReasoning(responseId)) conversation.addReasoning(text, responseId);
}

function callOf(answer: Json, { n }: KnownItem): ToolCall | undefined {
  const { tool_calls: calls } = answer;
  const call: unknown = Array.isArray(calls) ? calls[n] : undefined;
  const called = isObject(call) ? call["function"] : undefined;
  if (!isObject(call) || !isObject(called)) return undefined;
  return {
    id: String(call["id"]),
    type: "function",
    function: { name: String(called["name"]), arguments: String(called["arguments"]) },
  };
}

type AssistantMessage = {
  role: "assistant";
  content: string | null;
  reasoning_content?: string;
  tool_calls?: ToolCall[];
};

/** The messages so far, and the assistant's message that the next item may still belong to. */
class Conversation {
  readonly messages: ChatMessage[] = [];
  #turn: AssistantMessage | undefined;
  /** The response that the turn is known to be of. */
  #turnOf: string | undefined;

  add(message: ChatMessage): void {
    this.#turn = undefined;
    this.messages.push(message);
  }

  addText(text: string, responseId: string | undefined): void {
    const turn = this.#turnFor(responseId, ({ content }) => content === null);
    turn.content = (turn.content ?? "") + text;
  }

  addCall(call: ToolCall, responseId: string | undefined): void {
    const turn = this.#turnFor(responseId, () => true);
    turn.tool_calls = [...(turn.tool_calls ?? []), call];
  }

  addReasoning(text: string, responseId: string | undefined): void {
    // An answer begins with its reasoning: even one without a text says that the turn before it is over.
    if (text === "") {
      if (responseId === undefined || responseId !== this.#turnOf) this.#turn = undefined;
      return;
    }
    const turn = this.#turnFor(responseId, () => false);
    turn.reasoning_content = (turn.reasoning_content ?? "") + text;
  }

  hasText(responseId: string): boolean {
    return this.#turnOf === responseId && (this.#turn?.content ?? null) !== null;
  }

  hasReasoning(responseId: string): boolean {
    return this.#turnOf === responseId && this.#turn?.reasoning_content !== undefined;
  }

  /** The open turn if it is of the same response or, where that is not known, `takes` one more item; else a new one. */
  #turnFor(responseId: string | undefined, takes: (turn: AssistantMessage) => boolean): AssistantMessage {
    const open = this.#turn;
    if (open !== undefined) {
      const isKnown = responseId !== undefined && this.#turnOf !== undefined;
      if (isKnown ? responseId === this.#turnOf : takes(open)) {
        this.#turnOf ??= responseId;
        return open;
      }
    }
    const turn: AssistantMessage = { role: "assistant", content: null };
    this.messages.push(turn);
    this.#turn = turn;
    this.#turnOf = responseId;
    return turn;
  }
}

/** Text as it is; parts as chat's text parts, unless there is but one. */
function contentOf(content: unknown, path: string): string | Json[] {
  if (typeof content === "string") return content;
  const texts = textsOf(content, path);
  const [only, ...more] = texts;
  if (more.length === 0) return only ?? "";
  return texts.map((text) => ({ type: "text", text }));
}

function textOf(content: unknown, path: string): string {
  return typeof content === "string" ? content : textsOf(content, path).join("");
}

function textsOf(content: unknown, path: string): string[] {
  if (!Array.isArray(content)) throw unusable(path, "a text or a list of parts was wanted");
  return content.map((part: unknown, i) => partText(part, `${path}.${i}`));
}

function partText(part: unknown, path: string): string {
  if (!isObject(part)) throw unusable(path, "a part is an object");
  const { type } = part;
  if (type === "input_text" || type === "output_text" || type === "text") return stringOf(part["text"], `${path}.text`);
  if (type === "refusal") return stringOf(part["refusal"], `${path}.refusal`);
  throw unusable(
    `${path}.type`,
    `a policy reads text only, ${named(type)} came; map the model name to a provider that reads it`,
  );
}

function reasoningOf(content: unknown): string {
  if (!Array.isArray(content)) return "";
  return content
    .map((part: unknown) => (isObject(part) && typeof part["text"] === "string" ? part["text"] : ""))
    .join("");
}

function stringOf(value: unknown, path: string): string {
  if (typeof value === "string") return value;
  throw unusable(path, `a text was wanted, ${value === undefined ? "nothing" : named(value)} came`);
}

/** @returns the error that tells what is wrong with one place of a request's body */
export function unusable(path: string, why: string): FulgurError {
  return new FulgurError("ERR_INVALID_REQUEST", `the body's ${path} is not usable: ${why}`);
}

/** A type or an id for a message; whatever else came is told by its kind, since it may be of a prompt. */
export function named(value: unknown): string {
  if (typeof value === "string") return value.length <= 80 ? `"${value}"` : "a long text";
  if (value === null) return "null";
  return Array.isArray(value) ? "a list" : `a ${typeof value}`;
}
