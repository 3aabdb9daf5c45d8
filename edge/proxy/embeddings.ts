import { FulgurError } from "#shared/errors.ts";
import { errorResponse } from "../http-errors.ts";
import { isObject, type Json } from "./answer.ts";
import type { AnswerHead, Dialect } from "./dialect.ts";
import { readModel } from "./parse-request.ts";
import { count, fillIn, objectOr, wholeUsage, type Gathered, type ProviderReader } from "./provider/answer.ts";

/** OpenAI's `POST /v1/embeddings`: passed to a provider and metered. Policies are language models and have none. */
export const embeddingsDialect: Dialect = {
  name: "embeddings",
  parse(text): never {
    throw new FulgurError(
      "ERR_INVALID_REQUEST",
      `model ${readModel(text).model} is a policy, which has no embeddings; map a model name to a provider for them`,
    );
  },
  errorResponse,
};

/** A provider's answer with what clients need and it left out; vectors are passed on as they came. */
export function embeddingsReader(head: AnswerHead, options: { readonly promptCharacters: number }): ProviderReader {
  const message = { content: null, reasoning: null, toolCalls: [] };
  let prompt: number | undefined;
  let model: string | null = null;
  const gathered = (): Gathered => ({
    message,
    finishReason: null,
    usage: wholeUsage({ prompt, completion: 0 }, { ...options, message }),
    model,
  });
  return {
    whole(answer: Json) {
      const given = objectOr(answer["usage"]);
      prompt = count(given["prompt_tokens"]) ?? count(given["total_tokens"]);
      const { model: answered } = answer;
      if (typeof answered === "string") model = answered;
      const vectors: readonly unknown[] = Array.isArray(answer["data"]) ? answer["data"] : [];
      const data = vectors.filter(isObject).map((entry, index) => fillIn(entry, { object: "embedding", index }));
      const { prompt_tokens: tokens } = gathered().usage;
      const usage = fillIn(given, { prompt_tokens: tokens, total_tokens: tokens });
      return fillIn({ ...answer, data, usage }, { object: "list", model: head.model });
    },
    take: () => "",
    ended: true,
    ending: () => "",
    get gathered() {
      return gathered();
    },
  };
}
