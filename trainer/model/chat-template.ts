/** Messages → prompt text, by the Jinja template that the model's folder brings. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";

/** A call of a tool by the assistant, as the OpenAI wire has it. */
export interface MessageToolCall {
  readonly id: string;
  readonly name: string;
  /** JSON text. */
  readonly arguments: string;
}

/** One message of a conversation after its content parts were joined. */
export interface Message {
  readonly role: string;
  readonly content: string;
  readonly name?: string | undefined;
  readonly toolCalls?: readonly MessageToolCall[] | undefined;
  readonly toolCallId?: string | undefined;
  readonly reasoning?: string | undefined;
}

/** What a prompt is made from. */
export interface Conversation {
  readonly messages: readonly Message[];
  /** OpenAI tool definitions (`{type: "function", function: {…}}`), handed to the template as they are. */
  readonly tools: readonly unknown[];
  /** Extra template variables, such as `enable_thinking`. */
  readonly variables?: Readonly<Record<string, unknown>> | undefined;
}

/** A compiled template. */
export interface ChatTemplate {
  /** The Jinja text. */
  readonly source: string;
  /** The template says something about tools; if not, giving it tools would silently lose them. */
  readonly takesTools: boolean;
  /**
   * Renders a conversation.
   * @param ending `answer` appends the header of the assistant's turn, `none` stops after the last message
   * @throws FulgurError ERR_INVALID_REQUEST when the template refuses the messages
   */
  render(conversation: Conversation, ending: "answer" | "none"): string;
}

const namedTemplate = z.looseObject({ name: z.string(), template: z.string() });
const tokenText = z.union([z.string(), z.looseObject({ content: z.string() }).transform((t) => t.content)]).nullish();
const configSchema = z.looseObject({
  chat_template: z.union([z.string(), z.array(namedTemplate)]).nullish(),
  bos_token: tokenText,
  eos_token: tokenText,
  pad_token: tokenText,
  unk_token: tokenText,
});

/**
 * Reads the template of a model folder: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`
 * (of several named ones, `tool_use` before `default`).
 * @returns null when the folder has none; such a model answers `/v1/completions` only
 * @throws FulgurError ERR_MODEL when the template or the config cannot be parsed
 */
export async function loadChatTemplate(modelDir: string): Promise<ChatTemplate | null> {
  const path = join(modelDir, "tokenizer_config.json");
  try {
    const [jinja, text] = await Promise.all([
      readFile(join(modelDir, "chat_template.jinja"), "utf8").catch(() => null),
      readFile(path, "utf8").catch(() => "{}"),
    ]);
    const config = configSchema.parse(JSON.parse(text));
    const source = jinja ?? pickTemplate(config.chat_template ?? null);
    if (source === null) return null;
    return makeChatTemplate(source, {
      bos_token: config.bos_token ?? "",
      eos_token: config.eos_token ?? "",
      pad_token: config.pad_token ?? "",
      unk_token: config.unk_token ?? "",
    });
  } catch (cause) {
    throw new FulgurError(
      "ERR_MODEL",
      `The chat template of ${modelDir} cannot be used: ${messageOf(cause)}. Repair chat_template in ${path}.`,
      { cause },
    );
  }
}

/**
 * Compiles a template.
 * @param specialTokens variables such as `bos_token` that templates refer to
 * @throws Error as the Jinja parser does
 */
export function makeChatTemplate(source: string, specialTokens: Readonly<Record<string, string>> = {}): ChatTemplate {
  const template = new Template(source);
  return {
    source,
    takesTools: /\btools\b/.test(source),
    render({ messages, tools, variables = {} }, ending) {
      try {
        return template.render({
          ...specialTokens,
          ...variables,
          messages: messages.map(templateMessage),
          // Templates ask `if tools`; an empty list must read as none.
          tools: tools.length > 0 ? tools : null,
          add_generation_prompt: ending === "answer",
        });
      } catch (cause) {
        throw new FulgurError(
          "ERR_INVALID_REQUEST",
          `The model's chat template does not take these messages: ${messageOf(cause)}`,
          { cause },
        );
      }
    },
  };
}

function pickTemplate(given: string | readonly z.infer<typeof namedTemplate>[] | null): string | null {
  if (given === null || typeof given === "string") return given;
  const named = given.find((t) => t.name === "tool_use") ?? given.find((t) => t.name === "default") ?? given[0];
  return named?.template ?? null;
}

/** The form in which Hugging Face templates expect a message: tool arguments as an object, not as text. */
function templateMessage(message: Message): Record<string, unknown> {
  const rendered: Record<string, unknown> = {
    role: message.role === "developer" ? "system" : message.role,
    content: message.content,
  };
  if (message.name !== undefined) rendered["name"] = message.name;
  if (message.reasoning !== undefined) rendered["reasoning_content"] = message.reasoning;
  if (message.toolCallId !== undefined) rendered["tool_call_id"] = message.toolCallId;
  if (message.toolCalls !== undefined && message.toolCalls.length > 0) {
    rendered["tool_calls"] = message.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: parsedArguments(call.arguments) },
    }));
  }
  return rendered;
}

function parsedArguments(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
