import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import type { Mode } from "#shared/words.ts";
import { isObject } from "../answer.ts";
import { sampledBody } from "../sampled-body.ts";

/** What agents send to `/v1/chat/completions`: the fields that matter here are checked, the rest goes on as it is. */
const chatRequestSchema = z.looseObject({
  model: z.string().min(1).max(256),
  messages: z
    .array(z.looseObject({ role: z.string() }))
    .min(1)
    .max(4096),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  n: z.int().nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  logprobs: z.boolean().nullish(),
  return_token_ids: z.boolean().nullish(),
});
export type ChatRequest = z.infer<typeof chatRequestSchema>;

/**
 * A request for one answer.
 * @throws FulgurError ERR_INVALID_REQUEST saying which field was wanted how
 */
export function parseChatRequest(text: string): ChatRequest {
  return oneAnswer(readChatRequest(text));
}

/** @throws FulgurError ERR_INVALID_REQUEST saying which field was wanted how */
export function readChatRequest(text: string): ChatRequest {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    throw new FulgurError("ERR_INVALID_REQUEST", "the body is not valid JSON; send a chat completion request", {
      cause,
    });
  }
  return isUsual(body) ? body : checked(body);
}

/**
 * What a policy can be asked; providers may be asked for more. Several answers would be one call whose record, rewards and
 * trajectory have room for one.
 * @throws FulgurError ERR_INVALID_REQUEST
 */
export function oneAnswer(request: ChatRequest): ChatRequest {
  if ((request.n ?? 1) !== 1) {
    throw new FulgurError(
      "ERR_INVALID_REQUEST",
      `a policy gives one answer a call (n = 1), since a call is recorded, rewarded and trained on with its one answer; n = ${request.n} was asked for: send the request that often, or map its model to a provider`,
    );
  }
  return request;
}

function checked(body: unknown): ChatRequest {
  const parsed = chatRequestSchema.safeParse(body);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const path = issue?.path.join(".") ?? "";
  throw new FulgurError("ERR_INVALID_REQUEST", `the body's ${path || "form"} is not usable: ${issue?.message ?? ""}`);
}

/**
 * Whether a body is certainly one that the schema takes. Zod copies every message, and workerd forbids the code generation
 * that makes it quick, so it is asked only about what is out of the ordinary.
 */
function isUsual(body: unknown): body is ChatRequest {
  if (!isObject(body)) return false;
  const { model, messages, stream, stream_options: streamOptions, n, temperature, logprobs } = body;
  return (
    typeof model === "string" &&
    model.length >= 1 &&
    model.length <= 256 &&
    Array.isArray(messages) &&
    messages.length >= 1 &&
    messages.length <= 4096 &&
    messages.every((message: unknown) => isObject(message) && typeof message["role"] === "string") &&
    isFlag(stream) &&
    isFlag(logprobs) &&
    isFlag(body["return_token_ids"]) &&
    (streamOptions === undefined || (isObject(streamOptions) && isFlag(streamOptions["include_usage"]))) &&
    (n === undefined || n === 1) &&
    (temperature === undefined || (typeof temperature === "number" && temperature >= 0 && temperature <= 2))
  );
}

function isFlag(value: unknown): boolean {
  return value === undefined || typeof value === "boolean";
}

/** Fields for OpenAI's own service; inference has no use for them. */
const NOT_FOR_INFERENCE = new Set([
  "metadata",
  "prediction",
  "prompt_cache_key",
  "safety_identifier",
  "service_tier",
  "store",
  "user",
  "web_search_options",
]);

/** The request to inference, as JSON: {@link sampledBody} with logprobs; developers speak as the system does. */
export function inferenceBody(request: ChatRequest, model: string, mode: Mode): string {
  const body = sampledBody(request, { leftOut: NOT_FOR_INFERENCE, model, mode });
  body["messages"] = request.messages.map((message) =>
    message.role === "developer" ? { ...message, role: "system" } : message,
  );
  body["logprobs"] = true;
  return JSON.stringify(body);
}
