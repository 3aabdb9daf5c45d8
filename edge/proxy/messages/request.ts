import { z } from "zod";
import { isObject, parseObject, type Json } from "../answer.ts";
import type { ChatRequest } from "../chat/request.ts";
import type { ChatMessage } from "../dialect.ts";
import { parseRequest, unusable } from "../parse-request.ts";

/** What Anthropic's clients send to `POST /v1/messages`, and what it is as a chat request. */

const text = z.looseObject({ type: z.literal("text"), text: z.string() });
const textOnly = z.union([z.string(), z.array(text)]);

/** Blocks are narrowed one by one below, where a refusal can say more than a union of nine shapes. */
const block = z.looseObject({ type: z.string() });
const content = z.union([z.string(), z.array(block)]);

const tool = z.looseObject({
  type: z.string().nullish(),
  name: z.string().min(1).max(256),
  description: z.string().nullish(),
  input_schema: z.looseObject({}).optional(),
  strict: z.boolean().nullish(),
});

const parallel = { disable_parallel_tool_use: z.boolean().nullish() };
const toolChoice = z.union([
  z.looseObject({ type: z.enum(["auto", "any"]), ...parallel }),
  z.looseObject({ type: z.literal("tool"), name: z.string().min(1), ...parallel }),
  z.looseObject({ type: z.literal("none") }),
]);

/** Strict: Anthropic refuses unknown fields too, and what is not known here could change the answer. */
const messagesRequestSchema = z.strictObject({
  model: z.string().min(1).max(256),
  max_tokens: z.int().min(1),
  messages: z
    .array(z.looseObject({ role: z.enum(["user", "assistant", "system"]), content }))
    .min(1)
    .max(4096),
  system: textOnly.nullish(),
  stream: z.boolean().nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
  stop_sequences: z.array(z.string()).nullish(),
  tools: z.array(tool).nullish(),
  tool_choice: toolChoice.nullish(),
  // Whether the client is shown what the model thought; how long it may think is not a policy's to choose.
  thinking: z.looseObject({ type: z.string() }).nullish(),
  output_config: z
    .looseObject({
      format: z.looseObject({ type: z.literal("json_schema"), schema: z.looseObject({}) }).nullish(),
    })
    .nullish(),
  metadata: z.looseObject({ user_id: z.string().nullish() }).nullish(),
  // About how Anthropic's own service runs and bills a request, none of it about the answer.
  cache_control: z.unknown().optional(),
  diagnostics: z.unknown().optional(),
  inference_geo: z.unknown().optional(),
  service_tier: z.unknown().optional(),
  speed: z.unknown().optional(),
  user_profile_id: z.unknown().optional(),
  workspace_id: z.unknown().optional(),
  // Known, so that the refusal can say why; null is how clients write "not set".
  container: z.null("has code run by Anthropic; a policy cannot").optional(),
  context_management: z.null("has the prompt edited by Anthropic; edit it in the agent").optional(),
  mcp_servers: z.tuple([], "has tools called by Anthropic; call them in the agent").nullish(),
});
export type MessagesRequest = z.infer<typeof messagesRequestSchema>;

/** @throws FulgurError ERR_INVALID_REQUEST saying which field was wanted how */
export function parseMessagesRequest(body: string): MessagesRequest {
  return parseRequest(messagesRequestSchema, body, "a messages request");
}

/**
 * The same conversation as a chat request.
 * @throws FulgurError ERR_INVALID_REQUEST naming the block or tool that a policy cannot be given
 */
export function chatOfMessages(request: MessagesRequest): ChatRequest {
  const messages: ChatMessage[] = [];
  if (request.system !== undefined && request.system !== null && request.system.length > 0) {
    messages.push({ role: "system", content: chatContent(request.system) });
  }
  for (const [at, { role, content }] of request.messages.entries()) {
    messages.push(...chatMessages(role, content, `messages.${at}.content`));
  }
  if (messages.at(-1)?.role === "assistant") {
    throw unusable("messages", "must end with the user's turn; a policy does not go on with an assistant's message");
  }
  const { tools, tool_choice: choice, stop_sequences: stop, output_config: output } = request;
  return {
    model: request.model,
    messages,
    max_tokens: request.max_tokens,
    ...present({
      stream: request.stream,
      temperature: request.temperature,
      top_p: request.top_p,
      top_k: request.top_k,
      user: request.metadata?.user_id,
    }),
    ...(stop === undefined || stop === null || stop.length === 0 ? {} : { stop }),
    ...(tools === undefined || tools === null || tools.length === 0 ? {} : { tools: tools.map(chatTool) }),
    ...(choice === undefined || choice === null ? {} : chatToolChoice(choice)),
    ...(output?.format === undefined || output.format === null
      ? {}
      : {
          response_format: {
            type: "json_schema",
            json_schema: { name: "answer", schema: output.format.schema, strict: true },
          },
        }),
  };
}

/** Whether the client wants to see what the model thought. */
export function showsThinking({ thinking }: MessagesRequest): boolean {
  return thinking !== undefined && thinking !== null && thinking.type !== "disabled";
}

type Role = MessagesRequest["messages"][number]["role"];
type Content = MessagesRequest["messages"][number]["content"];

function chatMessages(role: Role, content: Content, path: string): ChatMessage[] {
  if (typeof content === "string") return [{ role, content }];
  return role === "assistant" ? [assistantMessage(content, path)] : userMessages(role, content, path);
}

/** Tool results become messages of their own, in their place among the texts. */
function userMessages(role: Role, blocks: readonly Json[], path: string): ChatMessage[] {
  if (blocks.length === 0) throw unusable(path, "must have a block");
  const messages: ChatMessage[] = [];
  let texts: TextPart[] = [];
  const flush = (): void => {
    if (texts.length > 0) messages.push({ role, content: chatContent(texts) });
    texts = [];
  };
  for (const [at, block] of blocks.entries()) {
    if (block["type"] === "tool_result" && role === "user") {
      flush();
      messages.push(toolMessage(block, `${path}.${at}`));
    } else {
      texts.push(textPart(block, `${path}.${at}`));
    }
  }
  flush();
  return messages;
}

function toolMessage(block: Json, path: string): ChatMessage {
  const { tool_use_id: id, content, is_error: isError } = block;
  if (typeof id !== "string" || id === "") throw unusable(`${path}.tool_use_id`, "must be the id of a tool_use block");
  const given = toolResultContent(content, `${path}.content`);
  return { role: "tool", tool_call_id: id, content: isError === true ? asError(given) : given };
}

function toolResultContent(content: unknown, path: string): string | TextPart[] {
  if (typeof content === "string") return content;
  if (content === undefined || content === null) return "";
  if (!Array.isArray(content)) throw unusable(path, "must be a text or a list of blocks");
  return chatContent((content as readonly unknown[]).map((part, at) => textPart(part, `${path}.${at}`)));
}

/** Chat has no flag for a tool that failed; an error object is how its tools say so, and what rewards are read from. */
function asError(content: string | readonly TextPart[]): string {
  const said = typeof content === "string" ? content : content.map(({ text }) => text).join("\n");
  return parseObject(said)?.["error"] ? said : JSON.stringify({ error: said || "the tool failed without a word" });
}

function assistantMessage(blocks: readonly Json[], path: string): ChatMessage {
  const texts: TextPart[] = [];
  const toolCalls: Json[] = [];
  let reasoning = "";
  for (const [at, block] of blocks.entries()) {
    switch (block["type"]) {
      case "tool_use":
        toolCalls.push(chatToolCall(block, `${path}.${at}`));
        break;
      case "thinking":
        if (typeof block["thinking"] === "string") reasoning += block["thinking"];
        break;
      case "redacted_thinking":
        // Encrypted by Anthropic, and of another model: there is nothing in it that a policy could read.
        break;
      default:
        texts.push(textPart(block, `${path}.${at}`));
    }
  }
  return {
    role: "assistant",
    content: texts.length === 0 ? null : chatContent(texts),
    ...(reasoning === "" ? {} : { reasoning_content: reasoning }),
    ...(toolCalls.length === 0 ? {} : { tool_calls: toolCalls }),
  };
}

function chatToolCall(block: Json, path: string): Json {
  const { id, name, input } = block;
  if (typeof id !== "string" || id === "") throw unusable(`${path}.id`, "must be a text that is not empty");
  if (typeof name !== "string" || name === "") throw unusable(`${path}.name`, "must be a text that is not empty");
  if (!isObject(input)) throw unusable(`${path}.input`, "must be an object");
  return { id, type: "function", function: { name, arguments: JSON.stringify(input) } };
}

interface TextPart {
  readonly type: "text";
  readonly text: string;
}

function textPart(block: unknown, path: string): TextPart {
  const parsed = text.safeParse(block);
  if (parsed.success) return { type: "text", text: parsed.data.text };
  const given = isObject(block) ? block["type"] : undefined;
  const type = typeof given === "string" ? given : "that has no type";
  throw unusable(path, `is a block ${type}, which a policy cannot be given; it takes text, tool_use and tool_result`);
}

/** One text as a text: what comes back of an answer of ours is then the message that was recorded. */
function chatContent(given: string | readonly TextPart[]): string | TextPart[] {
  if (typeof given === "string") return given;
  const [first] = given;
  return given.length === 1 && first !== undefined
    ? first.text
    : given.map(({ text }) => ({ type: "text" as const, text }));
}

function chatTool(given: z.infer<typeof tool>, at: number): Json {
  const { type, name, description, input_schema: parameters, strict } = given;
  if (type !== undefined && type !== null && type !== "custom") {
    throw unusable(
      `tools.${at}`,
      `is ${type}, a tool that Anthropic defines; a policy takes tools with an input_schema`,
    );
  }
  if (parameters === undefined) throw unusable(`tools.${at}.input_schema`, "must be a JSON schema");
  return { type: "function", function: { name, ...present({ description, parameters, strict }) } };
}

function chatToolChoice(choice: z.infer<typeof toolChoice>): Json {
  if (choice.type === "none") return { tool_choice: "none" };
  const wanted =
    choice.type === "tool"
      ? { type: "function", function: { name: choice.name } }
      : choice.type === "any"
        ? "required"
        : "auto";
  return {
    tool_choice: wanted,
    ...(choice.disable_parallel_tool_use === true ? { parallel_tool_calls: false } : {}),
  };
}

/** The fields that are set. */
function present(fields: Json): Json {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));
}
