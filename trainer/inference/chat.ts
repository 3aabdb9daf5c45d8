/** `POST /v1/chat/completions`. */

import { randomBytes } from "node:crypto";
import { FulgurError } from "#shared/errors.ts";
import type { Conversation, Message, MessageToolCall } from "../model/chat-template.ts";
import type { AnswerPart, ToolCallFormat } from "../model/tool-call.ts";
import type { AnswerChunk } from "./answer.ts";
import { answerChoices } from "./choices.ts";
import type { PromptPlan } from "./continuation.ts";
import type { Exchange } from "./exchange.ts";
import { ANY_OBJECT, type AnswerForm } from "./json-schema-grammar.ts";
import { chatLogprobs, stopIdsOf, usageOf } from "./openai.ts";
import { adjustmentsOf, type ChatRequest, messagesOf, samplingOf, stopsOf } from "./requests.ts";
import type { AnswerRequest, InferenceService } from "./service.ts";

/**
 * Answers a chat request.
 * @throws FulgurError before the reply has begun, or in the middle of a stream
 */
export async function answerChat(service: InferenceService, request: ChatRequest, exchange: Exchange): Promise<void> {
  const lease = await service.versions.acquire(request.model);
  let prompt: ChatPrompt;
  try {
    prompt = planChat(service, request);
  } catch (error) {
    lease.release();
    throw error;
  }
  const isStream = request.stream === true;
  const wantsLogprobs = request.logprobs === true;
  const head = {
    id: `chatcmpl-${randomBytes(16).toString("hex")}`,
    object: isStream ? "chat.completion.chunk" : "chat.completion",
    created: Math.floor(Date.now() / 1000),
    model: lease.name,
  };
  const answerRequest: AnswerRequest = {
    lease,
    promptIds: prompt.plan.ids,
    sampling: samplingOf(request, randomSeed),
    adjustments: adjustmentsOf(request),
    form: prompt.form,
    maxTokens: request.max_completion_tokens ?? request.max_tokens ?? null,
    stop: stopsOf(request),
    stopIds: stopIdsOf(service.model, request),
    topLogprobs: wantsLogprobs ? (request.top_logprobs ?? 0) : 0,
    toolCalls: prompt.toolCalls,
    report: isStream ? "each" : "whole",
    preferredThread: prompt.plan.thread,
    signal: exchange.signal,
  };
  const stream = isStream ? new ChatStream(service, request, exchange, head, prompt.plan.ids) : null;
  const choices = Array.from({ length: request.n ?? 1 }, (): Choice => ({ turn: new Turn(), chunks: [] }));
  const summaries = await answerChoices(service, answerRequest, choices.length, (index, chunk) => {
    const choice = choices[index];
    if (choice === undefined) return;
    choice.chunks.push(chunk);
    const deltas = choice.turn.add(chunk);
    stream?.send(index, chunk, deltas);
  });
  if (summaries.some(({ finish }) => finish === "abort")) return;
  const sampled = choices.map(({ chunks }) => chunks.flatMap(({ tokens }) => tokens));
  for (const [index, { thread }] of summaries.entries()) {
    service.continuation?.remember({
      conversation: prompt.plan.conversation,
      promptIds: prompt.plan.ids,
      responseIds: sampled[index] ?? [],
      message: choices[index]?.turn.message() ?? { role: "assistant", content: "" },
      thread,
    });
  }
  // The prompt counts once, however many answers it has.
  const usage = usageOf(prompt.plan.ids.length, sampled.flat().length, summaries[0]?.cachedTokens ?? 0);
  if (stream !== null) {
    stream.end(usage);
    return;
  }
  exchange.json(200, {
    ...head,
    choices: choices.map(({ turn, chunks }, index) => ({
      index,
      message: turn.wireMessage(),
      logprobs: wantsLogprobs ? { content: chatLogprobs(service.model.tokenizer, chunks) } : null,
      finish_reason: summaries[index]?.finish,
      ...(request.return_token_ids === true ? { token_ids: sampled[index] } : {}),
    })),
    usage,
    ...(request.return_token_ids === true ? { prompt_token_ids: Array.from(prompt.plan.ids) } : {}),
  });
}

/** One answer as it grows. */
interface Choice {
  readonly turn: Turn;
  readonly chunks: AnswerChunk[];
}

/** A seed for a request that brought none. */
export function randomSeed(): number {
  return randomBytes(6).readUIntBE(0, 6);
}

interface ChatPrompt {
  readonly plan: PromptPlan;
  readonly form: AnswerForm | null;
  readonly toolCalls: ToolCallFormat | null;
}

function planChat(service: InferenceService, request: ChatRequest): ChatPrompt {
  const { model, continuation } = service;
  if (continuation === null || model.template === null) {
    throw new FulgurError(
      "ERR_INVALID_REQUEST",
      "This model has no chat template; use /v1/completions, or add chat_template to its tokenizer_config.json.",
    );
  }
  const tools = request.tools ?? [];
  if (tools.length > 0 && !model.template.takesTools) {
    throw new FulgurError("ERR_INVALID_REQUEST", "tools: this model's chat template takes no tools; leave them out.");
  }
  const choice = request.tool_choice ?? (tools.length > 0 ? "auto" : "none");
  const forced = typeof choice === "object" ? choice.function.name : null;
  if ((forced !== null || choice === "required") && tools.length === 0) {
    throw new FulgurError("ERR_INVALID_REQUEST", "tool_choice: asks for a tool call, but there are no tools.");
  }
  if (forced !== null && !tools.some(({ function: { name } }) => name === forced)) {
    throw new FulgurError("ERR_INVALID_REQUEST", `tool_choice: there is no tool "${forced}" among tools.`);
  }
  const conversation: Conversation = {
    messages: messagesOf(request),
    tools,
    variables: request.chat_template_kwargs ?? undefined,
  };
  const plan = continuation.plan(conversation);
  const mustCall = forced !== null || choice === "required";
  const callable =
    choice === "none" ? [] : tools.filter(({ function: { name } }) => forced === null || name === forced);
  const form = formOf(request.response_format, callable, { toolCalls: model.toolCalls, mustCall });
  return { plan, form, toolCalls: choice === "none" ? null : model.toolCalls };
}

/**
 * What the answer must be like: a call where one is forced, else the response's format, which a call of a tool may stand
 * in for. Arguments of a strict tool fit its schema; those of another are an object.
 */
function formOf(
  format: ChatRequest["response_format"],
  tools: NonNullable<ChatRequest["tools"]>,
  { toolCalls, mustCall }: { readonly toolCalls: ToolCallFormat; readonly mustCall: boolean },
): AnswerForm | null {
  const calls = tools.map(({ function: { name, parameters, strict } }): AnswerForm => {
    const { before, after } = toolCalls.callText(name);
    const args: AnswerForm =
      strict === true ? { type: "schema", schema: parameters ?? { type: "object" } } : ANY_OBJECT;
    return { type: "sequence", parts: [{ type: "text", text: before }, args, { type: "text", text: after }] };
  });
  if (mustCall) return { type: "choice", options: calls };
  if (format?.type === "json_object") return { type: "choice", options: [ANY_OBJECT, ...calls] };
  if (format?.type !== "json_schema") return null;
  return { type: "choice", options: [{ type: "schema", schema: format.json_schema.schema }, ...calls] };
}

/** A piece of the assistant's message, with the id that a tool call was given. */
type Delta =
  | { readonly type: "content"; readonly text: string }
  | { readonly type: "tool_call"; readonly index: number; readonly call: MessageToolCall };

/** The assistant's message as it grows. */
class Turn {
  #content = "";
  readonly #calls: MessageToolCall[] = [];

  add({ parts }: { readonly parts: readonly AnswerPart[] }): Delta[] {
    return parts.map((part) => {
      if (part.type === "content") {
        this.#content += part.text;
        return part;
      }
      // Fresh for every call: agents hand the id back, and it is what outcomes and earlier turns are found by.
      const call = { id: `call_${randomBytes(12).toString("hex")}`, ...part.call };
      this.#calls.push(call);
      return { type: "tool_call", index: this.#calls.length - 1, call };
    });
  }

  message(): Message {
    return {
      role: "assistant",
      content: this.#content,
      ...(this.#calls.length > 0 ? { toolCalls: this.#calls } : {}),
    };
  }

  wireMessage(): Record<string, unknown> {
    return {
      role: "assistant",
      content: this.#content === "" && this.#calls.length > 0 ? null : this.#content,
      ...(this.#calls.length > 0 ? { tool_calls: this.#calls.map(wireCall) } : {}),
    };
  }
}

function wireCall(call: MessageToolCall): Record<string, unknown> {
  return { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } };
}

/** A streamed reply: one event a piece of text, with the ids sampled since the choice's event before. */
class ChatStream {
  readonly #service: InferenceService;
  readonly #request: ChatRequest;
  readonly #exchange: Exchange;
  readonly #head: Readonly<Record<string, unknown>>;
  readonly #promptIds: Int32Array;
  /** By choice that has begun: chunks whose text was held back; their ids go out with the next event. */
  readonly #unsent = new Map<number, AnswerChunk[]>();

  constructor(
    service: InferenceService,
    request: ChatRequest,
    exchange: Exchange,
    head: Readonly<Record<string, unknown>>,
    promptIds: Int32Array,
  ) {
    this.#service = service;
    this.#request = request;
    this.#exchange = exchange;
    this.#head = head;
    this.#promptIds = promptIds;
  }

  send(index: number, chunk: AnswerChunk, deltas: readonly Delta[]): void {
    this.#start(index).push(chunk);
    for (const [i, delta] of deltas.entries()) {
      const finish = i === deltas.length - 1 ? chunk.finish : null;
      if (delta.type === "content") this.#event(index, { content: delta.text }, finish);
      else this.#event(index, { tool_calls: [{ index: delta.index, ...wireCall(delta.call) }] }, finish);
    }
    if (chunk.finish !== null && deltas.length === 0) this.#event(index, {}, chunk.finish);
  }

  end(usage: Record<string, unknown>): void {
    if (this.#request.stream_options?.include_usage === true) {
      this.#exchange.event({ ...this.#head, choices: [], usage });
    }
    this.#exchange.event("[DONE]");
    this.#exchange.endEvents();
  }

  /** @returns the choice's unsent chunks */
  #start(index: number): AnswerChunk[] {
    const known = this.#unsent.get(index);
    if (known !== undefined) return known;
    const isFirst = this.#unsent.size === 0;
    if (isFirst) this.#exchange.startEvents();
    const unsent: AnswerChunk[] = [];
    this.#unsent.set(index, unsent);
    const returnsIds = isFirst && this.#request.return_token_ids === true;
    this.#exchange.event({
      ...this.#head,
      choices: [{ index, delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null }],
      ...(returnsIds ? { prompt_token_ids: Array.from(this.#promptIds) } : {}),
    });
    return unsent;
  }

  #event(index: number, delta: Record<string, unknown>, finish: string | null): void {
    const chunks = this.#unsent.get(index)?.splice(0) ?? [];
    const { logprobs, return_token_ids: returnIds } = this.#request;
    this.#exchange.event({
      ...this.#head,
      choices: [
        {
          index,
          delta,
          logprobs: logprobs === true ? { content: chatLogprobs(this.#service.model.tokenizer, chunks) } : null,
          finish_reason: finish,
          ...(returnIds === true ? { token_ids: chunks.flatMap(({ tokens }) => tokens) } : {}),
        },
      ],
    });
  }
}
