/** `POST /v1/chat/completions`. */

import { randomBytes } from "node:crypto";
import { FulgurError } from "#shared/errors.ts";
import type { Conversation, Message, MessageToolCall } from "../model/chat-template.ts";
import type { AnswerPart, ToolCallFormat } from "../model/tool-call.ts";
import type { AnswerChunk } from "./answer.ts";
import type { PromptPlan } from "./continuation.ts";
import type { Exchange } from "./exchange.ts";
import { chatLogprobs, stopIdsOf, usageOf } from "./openai.ts";
import { type ChatRequest, messagesOf, samplingOf, stopsOf } from "./requests.ts";
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
    promptIds: prompt.ids,
    sampling: samplingOf(request, randomSeed),
    maxTokens: request.max_completion_tokens ?? request.max_tokens ?? null,
    stop: stopsOf(request),
    stopIds: stopIdsOf(service.model, request),
    topLogprobs: wantsLogprobs ? (request.top_logprobs ?? 0) : 0,
    toolCalls: prompt.toolCalls,
    opening: prompt.opening,
    report: isStream ? "each" : "whole",
    preferredThread: prompt.plan.thread,
    signal: exchange.signal,
  };
  const turn = new Turn();
  const collected: AnswerChunk[] = [];
  const stream = isStream ? new ChatStream(service, request, exchange, head, prompt.ids) : null;
  const summary = await service.answer(answerRequest, (chunk) => {
    collected.push(chunk);
    const deltas = turn.add(chunk);
    stream?.send(chunk, deltas);
  });
  if (summary.finish === "abort") return;
  const responseIds = collected.flatMap(({ tokens }) => tokens);
  service.continuation?.remember({
    conversation: prompt.plan.conversation,
    promptIds: prompt.ids,
    responseIds,
    message: turn.message(),
    thread: summary.thread,
  });
  const usage = usageOf(prompt.ids.length, responseIds.length, summary.cachedTokens);
  if (stream !== null) {
    stream.end(usage);
    return;
  }
  exchange.json(200, {
    ...head,
    choices: [
      {
        index: 0,
        message: turn.wireMessage(),
        logprobs: wantsLogprobs ? { content: chatLogprobs(service.model.tokenizer, collected) } : null,
        finish_reason: summary.finish,
        ...(request.return_token_ids === true ? { token_ids: responseIds } : {}),
      },
    ],
    usage,
    ...(request.return_token_ids === true ? { prompt_token_ids: Array.from(prompt.ids) } : {}),
  });
}

/** A seed for a request that brought none. */
export function randomSeed(): number {
  return randomBytes(6).readUIntBE(0, 6);
}

interface ChatPrompt {
  readonly plan: PromptPlan;
  /** The plan's ids, and those of the opening that the answer is made to begin with. */
  readonly ids: Int32Array;
  readonly opening: string;
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
  const opening = forced !== null || choice === "required" ? model.toolCalls.forcedStart(forced) : "";
  const openingIds = model.tokenizer.encode(opening);
  const ids = new Int32Array(plan.ids.length + openingIds.length);
  ids.set(plan.ids);
  ids.set(openingIds, plan.ids.length);
  return { plan, ids, opening, toolCalls: choice === "none" ? null : model.toolCalls };
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

/** A streamed reply: one event a piece of text, with the ids sampled since the event before. */
class ChatStream {
  readonly #service: InferenceService;
  readonly #request: ChatRequest;
  readonly #exchange: Exchange;
  readonly #head: Readonly<Record<string, unknown>>;
  readonly #promptIds: Int32Array;
  #isStarted = false;
  /** Chunks whose text was held back; their ids go out with the next event. */
  #unsent: AnswerChunk[] = [];

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

  send(chunk: AnswerChunk, deltas: readonly Delta[]): void {
    this.#start();
    this.#unsent.push(chunk);
    for (const [i, delta] of deltas.entries()) {
      const isFinal = chunk.finish !== null && i === deltas.length - 1;
      if (delta.type === "content") this.#event({ content: delta.text }, isFinal ? chunk.finish : null);
      else {
        const call = { index: delta.index, ...wireCall(delta.call) };
        this.#event({ tool_calls: [call] }, isFinal ? chunk.finish : null);
      }
    }
    if (chunk.finish !== null && deltas.length === 0) this.#event({}, chunk.finish);
  }

  end(usage: Record<string, unknown>): void {
    if (this.#request.stream_options?.include_usage === true) {
      this.#exchange.event({ ...this.#head, choices: [], usage });
    }
    this.#exchange.event("[DONE]");
    this.#exchange.endEvents();
  }

  #start(): void {
    if (this.#isStarted) return;
    this.#isStarted = true;
    this.#exchange.startEvents();
    const ids = this.#request.return_token_ids === true ? { prompt_token_ids: Array.from(this.#promptIds) } : {};
    this.#exchange.event({
      ...this.#head,
      choices: [{ index: 0, delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null }],
      ...ids,
    });
  }

  #event(delta: Record<string, unknown>, finish: string | null): void {
    const chunks = this.#unsent.splice(0);
    const { logprobs, return_token_ids: returnIds } = this.#request;
    this.#exchange.event({
      ...this.#head,
      choices: [
        {
          index: 0,
          delta,
          logprobs: logprobs === true ? { content: chatLogprobs(this.#service.model.tokenizer, chunks) } : null,
          finish_reason: finish,
          ...(returnIds === true ? { token_ids: chunks.flatMap(({ tokens }) => tokens) } : {}),
        },
      ],
    });
  }
}
