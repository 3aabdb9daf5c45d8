/** Pieces of replies that the OpenAI endpoints share. */

import type { Tokenizer } from "../model/tokenizer.ts";
import type { AnswerChunk } from "./answer.ts";
import type { ServedModel } from "./service.ts";

/** One token with its log-probability, as chat replies list it. */
export interface WireLogprob {
  readonly token: string;
  readonly logprob: number;
  readonly bytes: readonly number[];
}

/** Token counts of a reply. */
export function usageOf(promptTokens: number, completionTokens: number, cachedTokens: number): Record<string, unknown> {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}

/** `logprobs.content` of a chat reply, one entry a token: of the distribution that was sampled from. */
export function chatLogprobs(
  tokenizer: Tokenizer,
  chunks: readonly AnswerChunk[],
): (WireLogprob & { readonly top_logprobs: readonly WireLogprob[] })[] {
  return chunks.flatMap(({ tokens, logprobs, alternatives }) =>
    tokens.map((token, i) => ({
      ...wireLogprob(tokenizer, token, logprobs[i] ?? 0),
      top_logprobs: (alternatives[i] ?? []).map((each) => wireLogprob(tokenizer, each.token, each.logprob)),
    })),
  );
}

/** Ids that end an answer to this request. */
export function stopIdsOf(
  model: ServedModel,
  request: { readonly ignore_eos?: boolean | null | undefined; readonly stop_token_ids?: number[] | null | undefined },
): number[] {
  return [...(request.ignore_eos === true ? [] : model.stopIds), ...(request.stop_token_ids ?? [])];
}

/** Text of one token, for lists of tokens; U+FFFD where it is only a part of a character. */
export function tokenText(tokenizer: Tokenizer, id: number): string {
  return Buffer.from(tokenizer.bytesOf(id)).toString("utf8");
}

function wireLogprob(tokenizer: Tokenizer, id: number, logprob: number): WireLogprob {
  return { token: tokenText(tokenizer, id), logprob, bytes: Array.from(tokenizer.bytesOf(id)) };
}
