import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { isObject, parseObject, type Json } from "../answer.ts";
import type { ChatRequest } from "../chat/request.ts";
import type { ChatMessage } from "../dialect.ts";
import { named, readInput, unusable, type InputOptions } from "./items.ts";

/**
 * A request to `/v1/responses` as a chat request. What a policy cannot do (hosted tools, images, conversations kept by the
 * service, work in the background) is refused by name. Without effect on a policy, and only echoed, are `reasoning`,
 * `text.verbosity`, `store`, `metadata`, `user`, `service_tier`, `safety_identifier`, `max_tool_calls` (it counts hosted
 * tools), the `prompt_cache_*` fields and `truncation`: a context that is too long is always refused, as with `disabled`.
 */

const refused = (why: string): z.ZodOptional<z.ZodNull> => z.null(why).optional();
const movedTo = (name: string): z.ZodOptional<z.ZodNull> => refused(`that is chat's name, here it is ${name}`);

const format = z.discriminatedUnion("type", [
  z.looseObject({ type: z.literal("text") }),
  z.looseObject({ type: z.literal("json_object") }),
  z.looseObject({
    type: z.literal("json_schema"),
    name: z.string().min(1),
    schema: z.record(z.string(), z.unknown()),
    description: z.string().nullish(),
    strict: z.boolean().nullish(),
  }),
]);

/** OpenAI's; all but the last two are of hosted tools and images, which never come. */
const INCLUDABLE = [
  "code_interpreter_call.outputs",
  "computer_call_output.output.image_url",
  "file_search_call.results",
  "message.input_image.image_url",
  "web_search_call.action.sources",
  "web_search_call.results",
  "message.output_text.logprobs",
  // Nothing is encrypted here: an answer's reasoning has its text.
  "reasoning.encrypted_content",
] as const;

/** Items and tools are read by hand: zod would copy them all, and workerd forbids the code generation that makes it quick. */
const schema = z.looseObject({
  model: z.string().min(1).max(256),
  input: z.union([z.string(), z.array(z.unknown()).max(4096)], "a text or a list of at most 4096 items was wanted"),
  instructions: z.string().nullish(),
  previous_response_id: z.string().min(1).max(256).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_obfuscation: z.boolean().nullish() }).nullish(),
  tools: z.array(z.unknown()).max(1024).nullish(),
  tool_choice: z.unknown().optional(),
  parallel_tool_calls: z.boolean().nullish(),
  text: z.looseObject({ format: format.nullish(), verbosity: z.string().nullish() }).nullish(),
  max_output_tokens: z.int().positive().nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().min(0).max(1).nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  include: z.array(z.enum(INCLUDABLE)).nullish(),
  reasoning: z.looseObject({}).nullish(),
  metadata: z.record(z.string(), z.unknown()).nullish(),
  store: z.boolean().nullish(),
  user: z.string().nullish(),
  safety_identifier: z.string().nullish(),
  service_tier: z.string().nullish(),
  truncation: z.enum(["auto", "disabled"]).nullish(),
  max_tool_calls: z.int().positive().nullish(),
  prompt_cache_key: z.string().nullish(),
  prompt_cache_retention: z.unknown().optional(),
  prompt_cache_options: z.unknown().optional(),
  background: z.literal(false, "answers are not made in the background; leave it out and read the answer").nullish(),
  conversation: refused("conversations are not kept here; send previous_response_id, or all items"),
  prompt: refused("prompt templates are not kept here; send instructions and input"),
  moderation: refused("a policy's answers are not moderated; leave it out"),
  context_management: z.tuple([], "a policy's context is not compacted; leave it out").nullish(),
  messages: movedTo("input"),
  max_tokens: movedTo("max_output_tokens"),
  max_completion_tokens: movedTo("max_output_tokens"),
  response_format: movedTo("text.format"),
  reasoning_effort: movedTo("reasoning.effort"),
  logprobs: movedTo('include: ["message.output_text.logprobs"]'),
  return_token_ids: refused("token ids are given by chat completions and completions only"),
  n: z.literal(1, "a policy gives one answer a call; send the request that often").nullish(),
});

/** The request as it came, checked. */
export type ResponsesBody = z.infer<typeof schema>;

export interface ReadResponsesRequest {
  readonly body: ResponsesBody;
  readonly chat: ChatRequest;
  /** What a later `previous_response_id` goes on from: the messages without this request's instructions. */
  readonly conversation: readonly ChatMessage[];
}

/** @throws FulgurError ERR_INVALID_REQUEST saying which field was wanted how */
export async function readResponsesRequest(text: string, options: InputOptions): Promise<ReadResponsesRequest> {
  const body = checkedBody(text);
  const { instructions, previous_response_id: previous } = body;
  const earlier = typeof previous === "string" ? await options.history(previous) : [];
  const conversation = [...earlier, ...(await readInput(body.input, options))];
  const messages =
    typeof instructions === "string" ? [{ role: "system", content: instructions }, ...conversation] : conversation;
  if (messages.length === 0) throw unusable("input", "at least one item was wanted");
  return { body, conversation, chat: chatOf(body, messages) };
}

/** Whether the client asked for the logprobs of the answer's text. */
export function wantsLogprobs({ include, top_logprobs: top }: ResponsesBody): boolean {
  return include?.includes("message.output_text.logprobs") === true || (top ?? 0) > 0;
}

function checkedBody(text: string): ResponsesBody {
  const given = parseObject(text);
  if (given === undefined) {
    throw new FulgurError("ERR_INVALID_REQUEST", "the body is not a JSON object; send a request to create a response");
  }
  const parsed = schema.safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw unusable(issue?.path.join(".") ?? "form", issue?.message ?? "");
}

function chatOf(body: ResponsesBody, messages: ChatMessage[]): ChatRequest {
  const tools = (body.tools ?? []).map(readTool);
  const { tools: allowed, choice } = readToolChoice(body.tool_choice ?? "auto", tools);
  const responseFormat = responseFormatOf(body.text?.format);
  const { temperature, top_p: topP, max_output_tokens: maxTokens } = body;
  return {
    ...Object.fromEntries(Object.entries(body).filter(([name]) => !Object.hasOwn(schema.shape, name))),
    model: body.model,
    messages,
    ...(body.stream === true ? { stream: true } : {}),
    ...(allowed.length > 0 ? { tools: allowed } : {}),
    // Chat takes these two only beside tools.
    ...(allowed.length > 0 || isForced(choice) ? { tool_choice: choice } : {}),
    ...(allowed.length > 0 && typeof body.parallel_tool_calls === "boolean"
      ? { parallel_tool_calls: body.parallel_tool_calls }
      : {}),
    ...(responseFormat === undefined ? {} : { response_format: responseFormat }),
    ...(typeof maxTokens === "number" ? { max_tokens: maxTokens } : {}),
    ...(typeof temperature === "number" ? { temperature } : {}),
    ...(typeof topP === "number" ? { top_p: topP } : {}),
    ...(wantsLogprobs(body) ? { logprobs: true, top_logprobs: body.top_logprobs ?? 0 } : {}),
  };
}

function isForced(choice: ChatToolChoice): boolean {
  return choice !== "auto" && choice !== "none";
}

interface ChatTool {
  readonly type: "function";
  readonly function: Json & { readonly name: string };
}

const functionTool = z.looseObject({
  name: z.string().min(1),
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
  strict: z.boolean().nullish(),
});

function readTool(tool: unknown, i: number): ChatTool {
  const path = `tools.${i}`;
  if (!isObject(tool)) throw unusable(path, "a tool is an object");
  if (tool["type"] !== "function") {
    throw unusable(
      `${path}.type`,
      `a policy calls functions only, ${named(tool["type"])} came; hosted tools are run by their provider alone`,
    );
  }
  const parsed = functionTool.safeParse(tool);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw unusable([path, ...(issue?.path ?? [])].join("."), issue?.message ?? "");
  }
  const { name, description, parameters, strict } = parsed.data;
  return {
    type: "function",
    function: {
      name,
      ...(typeof description === "string" ? { description } : {}),
      ...(isObject(parameters) ? { parameters } : {}),
      ...(typeof strict === "boolean" ? { strict } : {}),
    },
  };
}

type ChatToolChoice = "auto" | "none" | "required" | { readonly type: "function"; readonly function: { name: string } };

interface ToolChoice {
  /** The tools that the policy is shown: all, or those that are allowed. */
  readonly tools: readonly ChatTool[];
  readonly choice: ChatToolChoice;
}

function readToolChoice(given: unknown, tools: readonly ChatTool[]): ToolChoice {
  if (given === "auto" || given === "none" || given === "required") return { tools, choice: given };
  if (!isObject(given)) throw unusable("tool_choice", "auto, none, required or an object was wanted");
  const { type, name, mode } = given;
  if (type === "function") {
    if (typeof name !== "string") throw unusable("tool_choice.name", "the name of a function was wanted");
    return { tools, choice: { type, function: { name } } };
  }
  if (type !== "allowed_tools") {
    throw unusable("tool_choice.type", `function and allowed_tools are known, ${named(type)} came`);
  }
  if (mode !== "auto" && mode !== "required") throw unusable("tool_choice.mode", "auto or required was wanted");
  const allowed = allowedNames(given["tools"], tools);
  return { tools: tools.filter((tool) => allowed.has(tool.function.name)), choice: mode };
}

function allowedNames(given: unknown, tools: readonly ChatTool[]): Set<string> {
  if (!Array.isArray(given)) throw unusable("tool_choice.tools", "a list of tools was wanted");
  const names = given.map((tool: unknown, i) => {
    const name = isObject(tool) && tool["type"] === "function" ? tool["name"] : undefined;
    if (typeof name !== "string" || !tools.some((known) => known.function.name === name)) {
      throw unusable(`tool_choice.tools.${i}`, "a function that is among tools was wanted, by its type and name");
    }
    return name;
  });
  return new Set(names);
}

function responseFormatOf(given: z.infer<typeof format> | null | undefined): Json | undefined {
  switch (given?.type) {
    case "json_object":
      return { type: "json_object" };
    case "json_schema": {
      const { name, schema: jsonSchema, description, strict } = given;
      return {
        type: "json_schema",
        json_schema: {
          name,
          schema: jsonSchema,
          ...(typeof description === "string" ? { description } : {}),
          ...(typeof strict === "boolean" ? { strict } : {}),
        },
      };
    }
    default:
      return undefined;
  }
}
