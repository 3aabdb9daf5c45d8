/** `POST /v1/completions`: a prompt as text or token ids, without a chat template. */

import { randomBytes } from "node:crypto";
import type { Tokenizer } from "../model/tokenizer.ts";
import type { AnswerChunk } from "./answer.ts";
import { randomSeed } from "./chat.ts";
import { answerChoices } from "./choices.ts";
import type { Exchange } from "./exchange.ts";
import { stopIdsOf, tokenText, usageOf } from "./openai.ts";
import { adjustmentsOf, type CompletionRequest, samplingOf, stopsOf } from "./requests.ts";
import type { InferenceService } from "./service.ts";

/** What OpenAI gives a completion that says nothing about its length. */
const DEFAULT_MAX_TOKENS = 16;

/**
 * Answers a completion request.
 * @throws FulgurError before the reply has begun, or in the middle of a stream
 */
export async function answerCompletion(
  service: InferenceService,
  request: CompletionRequest,
  exchange: Exchange,
): Promise<void> {
  const { tokenizer } = service.model;
  const promptIds = promptIdsOf(tokenizer, request.prompt);
  const lease = await service.versions.acquire(request.model);
  const isStream = request.stream === true;
  const returnsIds = request.return_token_ids === true;
  const head = {
    id: `cmpl-${randomBytes(16).toString("hex")}`,
    object: "text_completion",
    created: Math.floor(Date.now() / 1000),
    model: lease.name,
  };
  const promptPart = returnsIds ? { prompt_token_ids: Array.from(promptIds) } : {};
  const choices = Array.from({ length: request.n ?? 1 }, (_, index) => new Choice(index, request, tokenizer));
  const summaries = await answerChoices(
    service,
    {
      lease,
      promptIds,
      sampling: samplingOf(request, randomSeed),
      adjustments: adjustmentsOf(request),
      form: null,
      maxTokens: request.max_tokens ?? DEFAULT_MAX_TOKENS,
      stop: stopsOf(request),
      stopIds: stopIdsOf(service.model, request),
      topLogprobs: request.logprobs ?? 0,
      toolCalls: null,
      report: isStream ? "each" : "whole",
      preferredThread: null,
      signal: exchange.signal,
    },
    choices.length,
    (index, chunk) => {
      const choice = choices[index];
      choice?.add(chunk);
      if (!isStream || choice === undefined) return;
      const isFirst = !exchange.isReplying;
      if (isFirst) exchange.startEvents();
      if (chunk.parts.length === 0 && chunk.finish === null && !isFirst) return;
      exchange.event({ ...head, choices: [choice.take(chunk.finish)], ...(isFirst ? promptPart : {}) });
    },
  );
  if (summaries.some(({ finish }) => finish === "abort")) return;
  const tokens = choices.reduce((sum, choice) => sum + choice.tokens, 0);
  // The prompt counts once, however many answers it has.
  const usage = usageOf(promptIds.length, tokens, summaries[0]?.cachedTokens ?? 0);
  if (!isStream) {
    const whole = choices.map((choice, index) => choice.take(summaries[index]?.finish ?? null));
    exchange.json(200, { ...head, choices: whole, usage, ...promptPart });
    return;
  }
  if (request.stream_options?.include_usage === true) exchange.event({ ...head, choices: [], usage });
  exchange.event("[DONE]");
  exchange.endEvents();
}

/** One answer as it grows. */
class Choice {
  readonly #index: number;
  readonly #request: CompletionRequest;
  readonly #tokenizer: Tokenizer;
  /** Where the next piece begins in the answer's text. */
  #offset = 0;
  #unsent: AnswerChunk[] = [];
  /** Sampled in all. */
  tokens = 0;

  constructor(index: number, request: CompletionRequest, tokenizer: Tokenizer) {
    this.#index = index;
    this.#request = request;
    this.#tokenizer = tokenizer;
  }

  add(chunk: AnswerChunk): void {
    this.#unsent.push(chunk);
    this.tokens += chunk.tokens.length;
  }

  /** What came since the last time, as an element of `choices`. */
  take(finish: string | null): Record<string, unknown> {
    const chunks = this.#unsent;
    this.#unsent = [];
    const { logprobs: wanted, return_token_ids: returnIds } = this.#request;
    const logprobs = typeof wanted === "number" ? completionLogprobs(this.#tokenizer, chunks, this.#offset) : null;
    this.#offset = logprobs?.end ?? this.#offset;
    return {
      index: this.#index,
      text: chunks.map(textOf).join(""),
      logprobs: logprobs?.wire ?? null,
      finish_reason: finish,
      ...(returnIds === true ? { token_ids: chunks.flatMap(({ tokens }) => tokens) } : {}),
    };
  }
}

function promptIdsOf(tokenizer: Tokenizer, prompt: CompletionRequest["prompt"]): Int32Array {
  if (typeof prompt === "string") return tokenizer.encode(prompt);
  const [first] = prompt;
  if (typeof first === "string") return tokenizer.encode(first);
  return Int32Array.from(Array.isArray(first) ? first : prompt.filter((id) => typeof id === "number"));
}

function textOf({ parts }: AnswerChunk): string {
  return parts.map((part) => (part.type === "content" ? part.text : "")).join("");
}

function completionLogprobs(
  tokenizer: Tokenizer,
  chunks: readonly AnswerChunk[],
  start: number,
): { wire: Record<string, unknown>; end: number } {
  const tokens: string[] = [];
  const tokenLogprobs: number[] = [];
  const topLogprobs: Record<string, number>[] = [];
  const textOffset: number[] = [];
  let end = start;
  for (const chunk of chunks) {
    for (const [i, id] of chunk.tokens.entries()) {
      const text = tokenText(tokenizer, id);
      tokens.push(text);
      tokenLogprobs.push(chunk.logprobs[i] ?? 0);
      topLogprobs.push(
        Object.fromEntries(
          (chunk.alternatives[i] ?? []).map((each) => [tokenText(tokenizer, each.token), each.logprob]),
        ),
      );
      textOffset.push(end);
      end += text.length;
    }
  }
  return {
    wire: { tokens, token_logprobs: tokenLogprobs, top_logprobs: topLogprobs, text_offset: textOffset },
    end,
  };
}
