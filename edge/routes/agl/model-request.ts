import { unpackFloats, unpackIds } from "#shared/packed.ts";
import type { Call } from "#shared/store/calls.ts";
import type { Json } from "#shared/tables.ts";

/** What the event's own row keeps of a proxied call: what its record has no room for. */
export interface KeptOfCall {
  readonly server: { readonly model: string; readonly endpoint: string; readonly version: number };
  /** Fields of the request that were set on its way. */
  readonly set: Readonly<Record<string, Json>>;
  /** An answer that is no completion: an error's. */
  readonly response?: Json;
  readonly routed_experts?: Json;
}

/**
 * The `model_request` event of a proxied call, from its record: the request as it was sent on, the answer as the endpoint's
 * dialect writes it, token ids and logprobs included.
 * @param kept {@link KeptOfCall}, as the store has it
 */
export function modelRequest(call: Call, kept: Readonly<Record<string, Json>>): Readonly<Record<string, Json>> {
  const server = kept["server"] ?? null;
  const fields = fieldsOf(server);
  const usage = usageOf(call);
  return {
    model: fields["model"] ?? call.modelAsked,
    model_version: fields["version"] ?? null,
    request: { ...fieldsOf(call.request), ...fieldsOf(kept["set"]) },
    response: kept["response"] ?? answerOf(call, usage),
    server,
    latency_ms: call.latencyMs,
    http_status: call.httpStatus,
    status: call.httpStatus < 400 ? "ok" : "error",
    retry_count: Math.max(0, call.upstreamAttempts - 1),
    routed_experts: kept["routed_experts"] ?? null,
    usage,
    finish_reason: call.finishReason,
  };
}

function usageOf({ promptTokens: prompt_tokens, completionTokens: completion_tokens }: Call): Json {
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}

function answerOf(call: Call, usage: Json): Json {
  if (call.response === null) return call.error === null ? {} : { error: { message: call.error } };
  const ids = call.responseTokenIds === null ? [] : [...unpackIds(call.responseTokenIds)];
  const prompt = call.promptTokenIds === null ? [] : [...unpackIds(call.promptTokenIds)];
  const logprobs = call.behaviourLogprobs === null ? null : [...unpackFloats(call.behaviourLogprobs)];
  const head = {
    id: call.id,
    created: Math.floor(call.createdAt / 1000),
    model: call.modelAnswered ?? call.modelAsked,
  };
  const end = { index: 0, finish_reason: call.finishReason, token_ids: ids };
  const texts = call.responseTokens;
  if (call.dialect === "completions") {
    const text = textOf(call.response);
    const flat = logprobs === null ? null : { token_logprobs: logprobs, tokens: texts };
    return {
      ...head,
      object: "text_completion",
      choices: [{ ...end, text, logprobs: flat, prompt_token_ids: prompt }],
      usage,
    };
  }
  const content =
    logprobs === null ? null : { content: logprobs.map((logprob, at) => ({ token: texts?.[at] ?? "", logprob })) };
  return {
    ...head,
    object: "chat.completion",
    choices: [{ ...end, message: call.response, logprobs: content }],
    usage,
    prompt_token_ids: prompt,
  };
}

/** Of an assistant's message. */
function textOf(message: Json): string {
  const content =
    typeof message === "object" && message !== null && !Array.isArray(message) ? message["content"] : null;
  return typeof content === "string" ? content : "";
}

function fieldsOf(value: Json | undefined): Readonly<Record<string, Json>> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}
