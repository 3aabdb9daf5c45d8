import { isObject, type Json, type ToolCall } from "../answer.ts";
import type { AnswerMessage, ToolCallPiece } from "../dialect.ts";

/** What one delta of a chat stream says. */
export interface Pieces {
  readonly text: string;
  readonly reasoning: string;
  /** One for each object of the delta's `tool_calls`, in order. */
  readonly toolCalls: readonly ToolCallPiece[];
}

/**
 * Gathers the deltas of one chat stream into its message and makes the pieces of tool calls whole on the way: an index
 * each, and id and name with the first. Endpoints leave ids or indices out, send one index for all calls, or one id twice.
 */
export class MessageGatherer {
  readonly #newId: () => string;
  readonly #calls: { readonly call: ToolCall; readonly given: GivenPlace }[] = [];
  #content: string | null = null;
  #reasoning: string | null = null;

  /** @param newToolCallId for calls that come without an id, or with one that another has */
  constructor(newToolCallId: () => string) {
    this.#newId = newToolCallId;
  }

  get message(): AnswerMessage {
    return { content: this.#content, reasoning: this.#reasoning, toolCalls: this.#calls.map(({ call }) => call) };
  }

  take(delta: Json): Pieces {
    const { content: text, tool_calls: called } = delta;
    // vLLM has called it both.
    const reasoning = delta["reasoning_content"] ?? delta["reasoning"];
    if (typeof text === "string") this.#content = (this.#content ?? "") + text;
    if (typeof reasoning === "string" && reasoning !== "") this.#reasoning = (this.#reasoning ?? "") + reasoning;
    const given: readonly unknown[] = Array.isArray(called) ? called : [];
    return {
      text: typeof text === "string" ? text : "",
      reasoning: typeof reasoning === "string" ? reasoning : "",
      toolCalls: given.filter(isObject).map((piece) => this.#takeCall(piece)),
    };
  }

  #takeCall(piece: Json): ToolCallPiece {
    const called = isObject(piece["function"]) ? piece["function"] : {};
    const name = typeof called["name"] === "string" ? called["name"] : "";
    const given: GivenPlace = {
      id: typeof piece["id"] === "string" && piece["id"] !== "" ? piece["id"] : undefined,
      index: Number.isInteger(piece["index"]) ? Number(piece["index"]) : undefined,
    };
    const argumentsDelta = textOf(called["arguments"]);
    const index = this.#placeOf(given, name);
    const known = this.#calls[index];
    if (known !== undefined) {
      known.call.function.arguments += argumentsDelta;
      return { index, argumentsDelta };
    }
    const taken = this.#calls.some(({ call }) => call.id === given.id);
    const id = given.id === undefined || taken ? this.#newId() : given.id;
    this.#calls.push({ given, call: { id, type: "function", function: { name, arguments: argumentsDelta } } });
    return { index, id, name, argumentsDelta };
  }

  /** Which call a piece is of: one that there is, or the next. */
  #placeOf({ id, index }: GivenPlace, name: string): number {
    const next = this.#calls.length;
    const found = this.#calls.findLastIndex(({ given }) =>
      index === undefined ? id !== undefined && given.id === id : given.index === index,
    );
    if (index === undefined) {
      if (found !== -1) return found;
      return id !== undefined || name !== "" || next === 0 ? next : next - 1;
    }
    if (found === -1) return next;
    // One index for all calls: each then has an id of its own.
    const before = this.#calls[found]?.given.id;
    return id !== undefined && before !== undefined && id !== before ? next : found;
  }
}

interface GivenPlace {
  readonly id: string | undefined;
  readonly index: number | undefined;
}

/** Some endpoints send arguments as an object. */
function textOf(given: unknown): string {
  if (typeof given === "string") return given;
  return given === undefined || given === null ? "" : JSON.stringify(given);
}
