import { errorBody } from "../../http-errors.ts";
import type { Json } from "../answer.ts";
import type { AnswerEncoder, AnswerEnd, AnswerHead, ToolCallPiece } from "../dialect.ts";
import {
  callItem,
  incompleteReason,
  logprobEntries,
  messageItem,
  outputText,
  reasoningItem,
  responseObject,
  textLogprobs,
  withLastStatus,
  type Item,
} from "./answer.ts";
import { itemId, type ItemKind } from "./ids.ts";
import { wantsLogprobs, type ResponsesBody } from "./request.ts";

/**
 * The events of one response. Items are numbered in the order in which they begin; reasoning or a text is done when
 * something else begins, and what comes of it later is an item of its own. Function calls are done at the end, since
 * some endpoints send the pieces of several in turns.
 */
export function responseStream(body: ResponsesBody, head: AnswerHead): AnswerEncoder {
  return new ResponseEncoder(body, head);
}

interface OpenText {
  readonly kind: "rs" | "msg";
  readonly id: string;
  readonly outputIndex: number;
  text: string;
  logprobs: Json[];
}

interface OpenCall {
  readonly id: string;
  readonly outputIndex: number;
  readonly callId: string;
  readonly name: string;
  arguments: string;
}

/** The event types that differ between the two kinds of text. */
const TEXT_EVENTS = { rs: "response.reasoning_text", msg: "response.output_text" } as const;

class ResponseEncoder implements AnswerEncoder {
  readonly #body: ResponsesBody;
  readonly #head: AnswerHead;
  readonly #wantsLogprobs: boolean;
  /** The done items, by output index. */
  readonly #output: Item[] = [];
  readonly #begun = { rs: 0, msg: 0, fc: 0 };
  readonly #calls = new Map<number, OpenCall>();
  #open: OpenText | undefined;
  /** Logprobs whose text is still held back by the endpoint. */
  #early: Json[] = [];
  #sequence = 0;

  constructor(body: ResponsesBody, head: AnswerHead) {
    this.#body = body;
    this.#head = head;
    this.#wantsLogprobs = wantsLogprobs(body);
  }

  start(): string {
    const response = responseObject(this.#body, this.#head, { output: [] });
    return this.#event("response.created", { response }) + this.#event("response.in_progress", { response });
  }

  text(delta: string, logprobs: Json | null): string {
    const entries = this.#wantsLogprobs ? logprobEntries(logprobs) : [];
    if (delta === "") {
      (this.#open?.kind === "msg" ? this.#open.logprobs : this.#early).push(...entries);
      return "";
    }
    const now = [...this.#early, ...entries];
    this.#early = [];
    return this.#textDelta("msg", delta, now);
  }

  reasoning(delta: string): string {
    return delta === "" ? "" : this.#textDelta("rs", delta, []);
  }

  toolCall({ index, id = "", name = "", argumentsDelta: delta }: ToolCallPiece): string {
    let events = "";
    let call = this.#calls.get(index);
    if (call === undefined) {
      events += this.#closeText();
      call = { ...this.#begin("fc"), callId: id, name, arguments: "" };
      this.#calls.set(index, call);
      const item = { ...itemOfCall(call), status: "in_progress" };
      events += this.#event("response.output_item.added", { output_index: call.outputIndex, item });
    }
    if (delta === "") return events;
    call.arguments += delta;
    const at = { item_id: call.id, output_index: call.outputIndex };
    return events + this.#event("response.function_call_arguments.delta", { ...at, delta });
  }

  end({ finishReason, usage }: AnswerEnd): string {
    let events = "";
    if (this.#begun.msg === 0 && this.#begun.fc === 0) events += this.#openText("msg");
    const last = this.#begun.rs + this.#begun.msg + this.#begun.fc - 1;
    const isCut = (outputIndex: number): boolean => outputIndex === last && incompleteReason(finishReason) !== null;
    events += this.#closeText(isCut);
    for (const call of this.#calls.values()) events += this.#closeCall(call, isCut);
    const output = withLastStatus(this.#output, finishReason);
    const response = responseObject(this.#body, this.#head, { finishReason, usage, output });
    return (
      events +
      this.#event(response["status"] === "completed" ? "response.completed" : "response.incomplete", { response })
    );
  }

  /** Both of OpenAI's ways to tell of a failure: some clients wait for the one, some raise only the other. */
  fail(thrown: unknown): string {
    const { error } = errorBody(thrown);
    const { message, param } = error;
    const code = error.type === "rate_limit_error" ? "rate_limit_exceeded" : "server_error";
    const response = responseObject(this.#body, this.#head, {
      output: this.#output.filter(Boolean),
      error: { code, message },
    });
    return (
      this.#event("response.failed", { response }) +
      // Flat as OpenAI documents it, and nested as it is sent; SDKs read the one or the other.
      this.#event("error", { code: error.code, message, param, error })
    );
  }

  #textDelta(kind: "rs" | "msg", delta: string, logprobs: Json[]): string {
    let events = "";
    if (this.#open?.kind !== kind) events += this.#openText(kind);
    const open = this.#open;
    if (open === undefined) return events;
    open.text += delta;
    open.logprobs.push(...logprobs);
    return (
      events +
      this.#event(`${TEXT_EVENTS[kind]}.delta`, { ...partOf(open), delta, ...(kind === "msg" ? { logprobs } : {}) })
    );
  }

  #openText(kind: "rs" | "msg"): string {
    const before = this.#closeText();
    const open: OpenText = { kind, ...this.#begin(kind), text: "", logprobs: [] };
    this.#open = open;
    const item = { ...this.#itemOfText(open), status: "in_progress", content: [] };
    return (
      before +
      this.#event("response.output_item.added", { output_index: open.outputIndex, item }) +
      this.#event("response.content_part.added", { ...partOf(open), part: this.#partOfText(open) })
    );
  }

  #closeText(isCut: (outputIndex: number) => boolean = () => false): string {
    const open = this.#open;
    if (open === undefined) return "";
    this.#open = undefined;
    const { kind, outputIndex, text } = open;
    const item = this.#done(outputIndex, this.#itemOfText(open), isCut);
    const part = this.#partOfText(open);
    return (
      this.#event(`${TEXT_EVENTS[kind]}.done`, {
        ...partOf(open),
        text,
        ...(kind === "msg" ? { logprobs: part["logprobs"] ?? [] } : {}),
      }) +
      this.#event("response.content_part.done", { ...partOf(open), part }) +
      this.#event("response.output_item.done", { output_index: outputIndex, item })
    );
  }

  #closeCall(call: OpenCall, isCut: (outputIndex: number) => boolean): string {
    const { id, outputIndex, name } = call;
    const item = this.#done(outputIndex, itemOfCall(call), isCut);
    return (
      this.#event("response.function_call_arguments.done", {
        item_id: id,
        output_index: outputIndex,
        name,
        arguments: call.arguments,
      }) + this.#event("response.output_item.done", { output_index: outputIndex, item })
    );
  }

  #begin(kind: ItemKind): { readonly id: string; readonly outputIndex: number } {
    const { rs, msg, fc } = this.#begun;
    const id = itemId(this.#head.id, kind, this.#begun[kind]);
    this.#begun[kind] += 1;
    return { id, outputIndex: rs + msg + fc };
  }

  #done(outputIndex: number, item: Item, isCut: (outputIndex: number) => boolean): Item {
    const done: Item = isCut(outputIndex) ? { ...item, status: "incomplete" } : item;
    this.#output[outputIndex] = done;
    return done;
  }

  #itemOfText(open: OpenText): Item {
    const { kind, id, text } = open;
    return kind === "rs" ? reasoningItem(id, text) : messageItem(id, { text, logprobs: this.#logprobsOf(open) });
  }

  #partOfText(open: OpenText): Json {
    const { kind, text } = open;
    return kind === "rs" ? { type: "reasoning_text", text } : outputText({ text, logprobs: this.#logprobsOf(open) });
  }

  #logprobsOf({ text, logprobs }: OpenText): readonly Json[] | null {
    return this.#wantsLogprobs ? textLogprobs(text, logprobs) : null;
  }

  #event(type: string, fields: Json): string {
    const data = JSON.stringify({ type, sequence_number: this.#sequence, ...fields });
    this.#sequence += 1;
    return `event: ${type}\ndata: ${data}\n\n`;
  }
}

function partOf({ id, outputIndex }: OpenText): Json {
  return { item_id: id, output_index: outputIndex, content_index: 0 };
}

function itemOfCall({ id, callId, name, arguments: text }: OpenCall): Item {
  return callItem(id, { id: callId, type: "function", function: { name, arguments: text } });
}
