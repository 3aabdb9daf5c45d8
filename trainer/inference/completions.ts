/** `POST /v1/completions`: a prompt as text or token ids, without a chat template. */

import { randomBytes } from "node:crypto";
import type { Tokenizer } from "../model/tokenizer.ts";
import type { AnswerChunk } from "./answer.ts";
import { randomSeed } from "./chat.ts";
import type { Exchange } from "./exchange.ts";
import { stopIdsOf, tokenText, usageOf } from "./openai.ts";
import { type CompletionRequest, samplingOf, stopsOf } from "./requests.ts";
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
  const collected: AnswerChunk[] = [];
  let unsent: AnswerChunk[] = [];
  let offset = 0;
  const choiceOf = (chunks: readonly AnswerChunk[], finish: string | null): Record<string, unknown> => {
    const text = chunks.map(textOf).join("");
    const logprobs = typeof request.logprobs === "number" ? completionLogprobs(tokenizer, chunks, offset) : null;
    offset = logprobs?.end ?? offset;
    return {
      index: 0,
      text,
      logprobs: logprobs?.wire ?? null,
      finish_reason: finish,
      ...(returnsIds ? { token_ids: chunks.flatMap(({ tokens }) => tokens) } : {}),
    };
  };
  const promptPart = returnsIds ? { prompt_token_ids: Array.from(promptIds) } : {};
  const summary = await service.answer(
    {
      lease,
      promptIds,
      sampling: samplingOf(request, randomSeed),
      maxTokens: request.max_tokens ?? DEFAULT_MAX_TOKENS,
      stop: stopsOf(request),
      stopIds: stopIdsOf(service.model, request),
      topLogprobs: request.logprobs ?? 0,
      toolCalls: null,
      opening: "",
      report: isStream ? "each" : "whole",
      preferredThread: null,
      signal: exchange.signal,
    },
    (chunk) => {
      collected.push(chunk);
      if (!isStream) return;
      const isFirst = !exchange.isReplying;
      if (isFirst) exchange.startEvents();
      unsent.push(chunk);
      if (chunk.parts.length === 0 && chunk.finish === null && !isFirst) return;
      exchange.event({ ...head, choices: [choiceOf(unsent, chunk.finish)], ...(isFirst ? promptPart : {}) });
      unsent = [];
    },
  );
  if (summary.finish === "abort") return;
  const tokens = collected.reduce((sum, chunk) => sum + chunk.tokens.length, 0);
  const usage = usageOf(promptIds.length, tokens, summary.cachedTokens);
  if (!isStream) {
    exchange.json(200, { ...head, choices: [choiceOf(collected, summary.finish)], usage, ...promptPart });
    return;
  }
  if (request.stream_options?.include_usage === true) exchange.event({ ...head, choices: [], usage });
  exchange.event("[DONE]");
  exchange.endEvents();
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
