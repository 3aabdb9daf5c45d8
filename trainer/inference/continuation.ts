/**
 * Prompts that continue the token ids this endpoint sampled. Clients rewrite the assistant's messages on their way back
 * (other white space, other key order), and even the same text may tokenise differently from how it was sampled; then a
 * rollout falls apart into one training row a turn. So an earlier turn that means the same is put in from its ids:
 * prompt(n + 1) begins with prompt(n) + answer(n), id for id.
 */

import { createHash } from "node:crypto";
import type { ChatTemplate, Conversation, Message } from "../model/chat-template.ts";
import type { Tokenizer } from "../model/tokenizer.ts";

/** An answer that may come back as part of a later prompt. */
export interface SampledTurn {
  readonly conversation: Conversation;
  readonly promptIds: Int32Array;
  readonly responseIds: readonly number[];
  /** The message that the client got. */
  readonly message: Message;
  /** Decode thread that holds its keys and values. */
  readonly thread: number;
}

/** A conversation as token ids. */
export interface PromptPlan {
  readonly ids: Int32Array;
  /** The conversation with earlier turns as they were sampled; remember an answer together with this one. */
  readonly conversation: Conversation;
  /** Where the turn that it continues was sampled; null when there was none. */
  readonly thread: number | null;
}

/** What the planner works with. */
export interface ContinuationOptions {
  readonly template: ChatTemplate;
  readonly tokenizer: Tokenizer;
  /** Ids that end a turn. */
  readonly stopIds: readonly number[];
  /** Ids kept in all; the turns used least recently are forgotten beyond it. With 0 every turn is rendered anew. */
  readonly maxIds: number;
}

interface Kept {
  readonly keys: readonly string[];
  /** Hash of the rendered prompt that the turn answered. */
  readonly prompt: string;
  readonly ids: Int32Array;
  readonly message: Message;
  readonly thread: number;
}

/** Renders conversations and remembers answers. */
export class Continuation {
  readonly #options: ContinuationOptions;
  /** By each tool call's id, or by prompt and content where there is none; oldest first. */
  readonly #turns = new Map<string, Kept>();
  #keptIds = 0;

  constructor(options: ContinuationOptions) {
    this.#options = options;
  }

  /**
   * The ids of a conversation up to the beginning of the assistant's answer.
   * @throws FulgurError ERR_INVALID_REQUEST when the template refuses the messages
   */
  plan(asked: Conversation): PromptPlan {
    const { template, tokenizer } = this.#options;
    const conversation = { ...asked, messages: asked.messages.map((message) => this.#asSampled(message)) };
    const text = template.render(conversation, "answer");
    for (let turn = conversation.messages.length - 1; turn > 0; turn--) {
      const message = conversation.messages[turn];
      if (message?.role !== "assistant") continue;
      const before = template.render(upTo(conversation, turn), "answer");
      const kept = this.#find(message, before);
      if (kept === undefined || kept.prompt !== hash(before)) continue;
      const rest = this.#textAfter(conversation, turn, before, text, kept);
      if (rest === null) continue;
      return { ids: concat(kept.ids, tokenizer.encode(rest)), conversation, thread: kept.thread };
    }
    return { ids: tokenizer.encode(text), conversation, thread: null };
  }

  /** Keeps an answer, so that a later prompt may continue it. */
  remember({ conversation, promptIds, responseIds, message, thread }: SampledTurn): void {
    const before = this.#options.template.render(conversation, "answer");
    const calls = message.toolCalls ?? [];
    const keys = calls.length > 0 ? calls.map(({ id }) => callKey(id)) : [contentKey(before, message.content)];
    const kept: Kept = {
      keys,
      prompt: hash(before),
      ids: concat(promptIds, Int32Array.from(responseIds)),
      message,
      thread,
    };
    for (const key of keys) this.#forget(key);
    for (const key of keys) this.#turns.set(key, kept);
    this.#keptIds += kept.ids.length;
    for (const key of this.#turns.keys()) {
      if (this.#keptIds <= this.#options.maxIds) break;
      this.#forget(key);
    }
  }

  /** The message as it was sampled, if it still means the same. */
  #asSampled(message: Message): Message {
    const calls = message.toolCalls ?? [];
    const [first] = calls;
    if (message.role !== "assistant" || first === undefined) return message;
    const kept = this.#turns.get(callKey(first.id));
    const sampled = kept?.message.toolCalls ?? [];
    const isSame =
      sampled.length === calls.length &&
      calls.every((call, i) => {
        const other = sampled[i];
        return other?.id === call.id && other.name === call.name && isSameJson(other.arguments, call.arguments);
      });
    return isSame && kept !== undefined ? kept.message : message;
  }

  #find(message: Message, before: string): Kept | undefined {
    const [call] = message.toolCalls ?? [];
    const key = call === undefined ? contentKey(before, message.content) : callKey(call.id);
    const kept = this.#turns.get(key);
    // A call whose meaning was changed kept its own message in #asSampled and must not be replaced here.
    if (kept === undefined || (call !== undefined && kept.message !== message)) return undefined;
    for (const each of kept.keys) {
      this.#turns.delete(each);
      this.#turns.set(each, kept);
    }
    return kept;
  }

  /** What the full text has behind this turn's last sampled id; null where the template makes that unclear. */
  #textAfter(conversation: Conversation, turn: number, before: string, text: string, kept: Kept): string | null {
    const { template, tokenizer, stopIds } = this.#options;
    const through = template.render(upTo(conversation, turn + 1), "none");
    // Some templates render a turn differently once others follow (reasoning is dropped): then its ids do not fit.
    if (!text.startsWith(through)) return null;
    const turnStart = commonLength(before, through);
    const last = kept.ids.at(-1);
    const isEnded = last !== undefined && stopIds.includes(last);
    const enders = isEnded ? [last] : stopIds;
    for (const id of enders) {
      const ender = Buffer.from(tokenizer.bytesOf(id)).toString("utf8");
      const at = through.lastIndexOf(ender);
      if (ender === "" || at < turnStart) continue;
      return text.slice(isEnded ? at + ender.length : at);
    }
    return null;
  }

  #forget(key: string): void {
    const kept = this.#turns.get(key);
    if (kept === undefined) return;
    for (const each of kept.keys) if (this.#turns.get(each) === kept) this.#turns.delete(each);
    this.#keptIds -= kept.ids.length;
  }
}

function upTo(conversation: Conversation, count: number): Conversation {
  return { ...conversation, messages: conversation.messages.slice(0, count) };
}

function callKey(id: string): string {
  return `call ${id}`;
}

function contentKey(before: string, content: string): string {
  return `text ${hash(`${before}\0${content}`)}`;
}

function hash(text: string): string {
  return createHash("sha256").update(text).digest("base64");
}

function concat(head: Int32Array, tail: Int32Array): Int32Array {
  const joined = new Int32Array(head.length + tail.length);
  joined.set(head);
  joined.set(tail, head.length);
  return joined;
}

function commonLength(a: string, b: string): number {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length++;
  return length;
}

/** Equal as JSON values: white space and key order do not count, the order of lists does. */
function isSameJson(a: string, b: string): boolean {
  if (a === b) return true;
  try {
    return canonical(JSON.parse(a)) === canonical(JSON.parse(b));
  } catch {
    return false;
  }
}

function canonical(value: unknown): string {
  return JSON.stringify(value, (_, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).toSorted(([x], [y]) => (x < y ? -1 : x > y ? 1 : 0)))
      : each,
  );
}
