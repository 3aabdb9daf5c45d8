/**
 * Sampled tokens → the text and tool calls of an answer, as they come. Streamed and whole answers go through the same
 * reader and carry the same ids; they differ only in how often they look.
 */

import type { AnswerPart, ToolCallFormat, ToolCallStream } from "../model/tool-call.ts";
import { TextStream, type Tokenizer } from "../model/tokenizer.ts";
import type { TokenReport } from "./protocol.ts";
import type { Alternative } from "./sampling.ts";

/** Why an answer ended. */
export type FinishReason = "stop" | "length" | "tool_calls";

/** A further piece of an answer. */
export interface AnswerChunk {
  readonly parts: readonly AnswerPart[];
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  readonly alternatives: readonly (readonly Alternative[])[];
  /** Set on the last chunk. */
  readonly finish: FinishReason | null;
}

/** How an answer is to be read. */
export interface AnswerOptions {
  readonly tokenizer: Tokenizer;
  /** Texts that end the answer; they are not part of its text, but the ids that wrote them are part of its ids. */
  readonly stop: readonly string[];
  /** How tool calls are written; null: all text is content. */
  readonly toolCalls: ToolCallFormat | null;
}

/** Reads one answer. */
export class AnswerReader {
  readonly #options: AnswerOptions;
  readonly #text: TextStream;
  readonly #calls: ToolCallStream | null;
  readonly #longestStop: number;
  /** Text that might be the beginning of a stop string. */
  #held: string;
  #callCount = 0;
  #isDone = false;

  constructor(options: AnswerOptions) {
    this.#options = options;
    this.#text = new TextStream(options.tokenizer);
    this.#calls = options.toolCalls?.start() ?? null;
    this.#longestStop = options.stop.reduce((longest, { length }) => Math.max(longest, length), 0);
    this.#held = "";
  }

  /** A stop string ended the answer before its tokens did: nothing more of it is wanted. */
  get isDone(): boolean {
    return this.#isDone;
  }

  /** Reads what was sampled since the last time. */
  push(report: TokenReport): AnswerChunk {
    const parts: AnswerPart[] = [];
    let used = 0;
    let isStopped = false;
    for (const token of report.tokens) {
      used++;
      this.#held += this.#text.push(token);
      if (this.#cutAtStop()) {
        isStopped = true;
        break;
      }
    }
    const isLast = isStopped || report.finish !== null;
    if (isLast) {
      if (!isStopped) {
        this.#held += this.#text.end();
        isStopped = this.#cutAtStop();
      }
      this.#give(parts, this.#held);
      this.#held = "";
      if (this.#calls !== null) for (const part of this.#calls.end()) join(parts, part);
      this.#isDone = true;
    } else {
      const keep = this.#possibleStop();
      this.#give(parts, this.#held.slice(0, this.#held.length - keep));
      this.#held = this.#held.slice(this.#held.length - keep);
    }
    this.#callCount += parts.filter(({ type }) => type === "tool_call").length;
    return {
      parts,
      tokens: report.tokens.slice(0, used),
      logprobs: report.logprobs.slice(0, used),
      alternatives: report.alternatives?.slice(0, used) ?? [],
      finish: isLast ? this.#reason(isStopped ? "stop" : report.finish) : null,
    };
  }

  #reason(finish: "stop" | "length" | null): FinishReason {
    if (finish === "length") return "length";
    return this.#callCount > 0 ? "tool_calls" : "stop";
  }

  #give(parts: AnswerPart[], text: string): void {
    if (text === "") return;
    if (this.#calls === null) join(parts, { type: "content", text });
    else for (const part of this.#calls.push(text)) join(parts, part);
  }

  #cutAtStop(): boolean {
    const at = this.#options.stop
      .map((stop) => this.#held.indexOf(stop))
      .filter((index) => index >= 0)
      .reduce((first, index) => Math.min(first, index), Infinity);
    if (at === Infinity) return false;
    this.#held = this.#held.slice(0, at);
    return true;
  }

  /** Length of the longest end of the held text with which a stop string begins. */
  #possibleStop(): number {
    for (let length = Math.min(this.#longestStop - 1, this.#held.length); length > 0; length--) {
      const end = this.#held.slice(-length);
      if (this.#options.stop.some((stop) => stop.startsWith(end))) return length;
    }
    return 0;
  }
}

/** Appends a part, joining content to content. */
export function join(parts: AnswerPart[], part: AnswerPart): void {
  const last = parts.at(-1);
  if (part.type === "content" && last?.type === "content") {
    parts[parts.length - 1] = { type: "content", text: last.text + part.text };
  } else parts.push(part);
}
