import { z } from "zod";
import type { Mode } from "#shared/words.ts";
import { parseRequest } from "../parse-request.ts";
import { sampledBody } from "../sampled-body.ts";

/** What agents send to OpenAI's older `POST /v1/completions`: a prompt as text or token ids, without a chat template. */

const MAX_PROMPT_IDS = 1_048_576;
const ids = z.array(z.int().min(0)).min(1).max(MAX_PROMPT_IDS);

const completionsRequestSchema = z.looseObject({
  model: z.string().min(1).max(256),
  prompt: z.union(
    [z.string(), ids, z.tuple([z.string()]), z.tuple([ids])],
    "must be one text, or one list of token ids; send several prompts one at a time",
  ),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  max_tokens: z.int().min(1).nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  logprobs: z.int().min(0).max(20).nullish(),
  n: z.literal(1, "must be 1: a policy gives one answer a call; send the request that often").nullish(),
  best_of: z.literal(1, "must be 1: a policy gives one answer a call").nullish(),
  echo: z.literal(false, "must be false: the prompt is not given back").nullish(),
  suffix: z.literal("", "must be empty: a policy does not fill in the middle").nullish(),
  return_token_ids: z.boolean().nullish(),
});
export type CompletionsRequest = z.infer<typeof completionsRequestSchema>;

/** @throws FulgurError ERR_INVALID_REQUEST saying which field was wanted how */
export function parseCompletionsRequest(text: string): CompletionsRequest {
  return parseRequest(completionsRequestSchema, text, "a completion request");
}

/** Fields for OpenAI's own service; inference has no use for them. */
const NOT_FOR_INFERENCE = new Set(["best_of", "metadata", "service_tier", "store", "suffix", "user"]);

/** The request to inference: exactly this version, with token ids and the log-probability of each sampled token. */
export function completionsInferenceBody(request: CompletionsRequest, model: string, mode: Mode): string {
  const body = sampledBody(request, { leftOut: NOT_FOR_INFERENCE, model, mode });
  body["logprobs"] = request.logprobs ?? 1;
  return JSON.stringify(body);
}
