/** Request bodies of the OpenAI and vLLM dialect: what is accepted, what is refused by name, what is ignored. */

import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";
import type { Message } from "../model/chat-template.ts";
import type { LogitAdjustments } from "./logit-rules.ts";
import type { SamplingOptions } from "./sampling.ts";

const count = z.int().nonnegative();
const penalty = z.number().min(-2).max(2);
/** Fields that would change the answer and are not implemented: anything but their neutral value is refused. */
const neutral = {
  best_of: z.literal(1, "is not supported").nullish(),
  repetition_penalty: z.literal(1, "is not supported; leave it out").nullish(),
  min_p: z.literal(0, "is not supported; leave it out").nullish(),
};

const sampling = {
  model: z.string().min(1),
  temperature: z.number().min(0).max(100).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  // vLLM writes "all tokens" as −1 or 0.
  top_k: z.int().min(-1).nullish(),
  seed: z.int().nullish(),
  n: z.int().min(1).max(128).nullish(),
  frequency_penalty: penalty.nullish(),
  presence_penalty: penalty.nullish(),
  logit_bias: z.record(z.string().regex(/^\d{1,9}$/, "keys are token ids"), z.number().min(-100).max(100)).nullish(),
  stop: z.union([z.string(), z.array(z.string()).max(16)]).nullish(),
  stop_token_ids: z.array(count).nullish(),
  ignore_eos: z.boolean().nullish(),
  max_tokens: z.int().positive().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  return_token_ids: z.boolean().nullish(),
};

const textPart = z.looseObject({
  type: z.enum(["text", "input_text", "output_text", "refusal"]),
  text: z.string().optional(),
});
const toolCall = z.looseObject({
  id: z.string(),
  function: z.looseObject({ name: z.string(), arguments: z.string().nullish() }),
});
const message = z.looseObject({
  role: z.enum(["system", "developer", "user", "assistant", "tool"]),
  content: z.union([z.string(), z.array(textPart)]).nullish(),
  name: z.string().nullish(),
  tool_calls: z.array(toolCall).nullish(),
  tool_call_id: z.string().nullish(),
  reasoning_content: z.string().nullish(),
});
const tool = z.looseObject({
  type: z.literal("function"),
  function: z.looseObject({
    name: z.string().min(1),
    parameters: z.unknown().optional(),
    strict: z.boolean().nullish(),
  }),
});

/** Body of `POST /v1/chat/completions`. */
export const chatRequestSchema = z.looseObject({
  ...sampling,
  ...neutral,
  messages: z.array(message).min(1, "needs at least one message"),
  tools: z.array(tool).nullish(),
  tool_choice: z
    .union([
      z.enum(["none", "auto", "required"]),
      z.looseObject({ type: z.literal("function"), function: z.looseObject({ name: z.string() }) }),
    ])
    .nullish(),
  max_completion_tokens: z.int().positive().nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: count.max(20).nullish(),
  response_format: z
    .discriminatedUnion("type", [
      z.looseObject({ type: z.literal("text") }),
      z.looseObject({ type: z.literal("json_object") }),
      z.looseObject({ type: z.literal("json_schema"), json_schema: z.looseObject({ schema: z.unknown().optional() }) }),
    ])
    .nullish(),
  chat_template_kwargs: z.record(z.string(), z.unknown()).nullish(),
});

/** Body of `POST /v1/completions`; one prompt, as text or as token ids. */
export const completionRequestSchema = z.looseObject({
  ...sampling,
  ...neutral,
  prompt: z.union([z.string(), z.array(count).min(1), z.tuple([z.string()]), z.tuple([z.array(count).min(1)])]),
  logprobs: count.max(20).nullish(),
  echo: z.literal(false, "is not supported").nullish(),
  suffix: z.literal("", "is not supported").nullish(),
});

/** Body of `POST /v1/load_lora_adapter`. */
export const loadRequestSchema = z.looseObject({ lora_name: z.string().min(1), lora_path: z.string().min(1) });
/** Body of `POST /v1/unload_lora_adapter`. */
export const unloadRequestSchema = z.looseObject({ lora_name: z.string().min(1) });

/** A parsed chat request. */
export type ChatRequest = z.infer<typeof chatRequestSchema>;
/** A parsed completion request. */
export type CompletionRequest = z.infer<typeof completionRequestSchema>;

/**
 * Parses a body.
 * @throws FulgurError ERR_INVALID_REQUEST that names the first field at fault
 */
export function parseRequest<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const field = issue?.path.join(".") ?? "";
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    `${field === "" ? "The body" : field}: ${issue?.message ?? "is invalid"}`,
  );
}

/** Sampling of a request. */
export function samplingOf(
  request: Pick<ChatRequest, "temperature" | "top_p" | "top_k" | "seed">,
  randomSeed: () => number,
): SamplingOptions {
  return {
    temperature: request.temperature ?? 1,
    topP: request.top_p ?? 1,
    topK: Math.max(0, request.top_k ?? 0),
    seed: request.seed ?? randomSeed(),
  };
}

/** What a request changes about the model's distribution; null when nothing. */
export function adjustmentsOf(
  request: Pick<ChatRequest, "frequency_penalty" | "presence_penalty" | "logit_bias">,
): LogitAdjustments | null {
  const frequencyPenalty = request.frequency_penalty ?? 0;
  const presencePenalty = request.presence_penalty ?? 0;
  const bias = Object.entries(request.logit_bias ?? {}).map(([token, change]) => [Number(token), change] as const);
  if (frequencyPenalty === 0 && presencePenalty === 0 && bias.length === 0) return null;
  return { frequencyPenalty, presencePenalty, bias };
}

/** Stop strings of a request; empty ones would end every answer at once and are left out. */
export function stopsOf({ stop }: Pick<ChatRequest, "stop">): string[] {
  return (typeof stop === "string" ? [stop] : (stop ?? [])).filter((text) => text !== "");
}

/** Messages of a chat request as the template takes them. */
export function messagesOf(request: ChatRequest): Message[] {
  return request.messages.map((given) => ({
    role: given.role,
    content: textOf(given.content),
    name: given.name ?? undefined,
    reasoning: given.reasoning_content ?? undefined,
    toolCallId: given.tool_call_id ?? undefined,
    toolCalls: given.tool_calls?.map(({ id, function: { name, arguments: text } }) => ({
      id,
      name,
      arguments: text ?? "{}",
    })),
  }));
}

function textOf(content: ChatRequest["messages"][number]["content"]): string {
  if (content === null || content === undefined) return "";
  return typeof content === "string" ? content : content.map(({ text }) => text ?? "").join("");
}
