/** Where a request shows what its tools answered, in each dialect. Forms that are not known are skipped, never refused. */

/** One tool's answer as a request shows it. */
export interface ToolResult {
  readonly toolCallId: string;
  /** Undefined where neither the call nor a name of its own is in what was read. */
  readonly tool: string | undefined;
  readonly text: string;
  /** True where the dialect itself says so (Anthropic's `is_error`). */
  readonly failed: boolean;
}

/**
 * The tool results of a chat request's messages, in order.
 * @param toolOfCall tool names by call id that are known from elsewhere; those of the messages are added
 */
export function chatToolResults(messages: unknown, toolOfCall = new Map<string, string>()): ToolResult[] {
  if (!Array.isArray(messages)) return [];
  const results: ToolResult[] = [];
  for (const message of messages as readonly unknown[]) {
    if (!isObject(message)) continue;
    if (message["role"] === "assistant") {
      for (const { id, name } of toolCallsOf(message)) toolOfCall.set(id, name);
    } else if (message["role"] === "tool") {
      const { tool_call_id: toolCallId, name, content } = message;
      if (typeof toolCallId !== "string" || toolCallId === "" || !isContent(content)) continue;
      const own = typeof name === "string" ? name : undefined;
      results.push({ toolCallId, tool: toolOfCall.get(toolCallId) ?? own, text: textOf(content), failed: false });
    }
  }
  return results;
}

/**
 * The tool results of a recorded request in its own dialect (`chat`, `responses`, `messages`).
 * @param toolOfCall see {@link chatToolResults}; a request that names an earlier answer shows results without their calls
 */
export function recordedToolResults(
  dialect: string,
  request: unknown,
  toolOfCall = new Map<string, string>(),
): ToolResult[] {
  if (!isObject(request)) return [];
  if (dialect === "responses") return responsesToolResults(request["input"], toolOfCall);
  if (dialect === "messages") return messagesToolResults(request["messages"], toolOfCall);
  return chatToolResults(request["messages"], toolOfCall);
}

/** Id and tool name of each tool call of an assistant's message in the chat form, in order. */
export function toolCallsOf(message: unknown): { readonly id: string; readonly name: string }[] {
  if (!isObject(message) || message["role"] !== "assistant" || !Array.isArray(message["tool_calls"])) return [];
  return (message["tool_calls"] as readonly unknown[]).flatMap((call) => {
    if (!isObject(call) || !isObject(call["function"])) return [];
    const { id } = call;
    const { name } = call["function"];
    return typeof id === "string" && id !== "" && typeof name === "string" ? [{ id, name }] : [];
  });
}

function responsesToolResults(input: unknown, toolOfCall: Map<string, string>): ToolResult[] {
  if (!Array.isArray(input)) return [];
  const results: ToolResult[] = [];
  for (const item of input as readonly unknown[]) {
    if (!isObject(item)) continue;
    const { type, call_id: toolCallId, name, output } = item;
    if (typeof toolCallId !== "string" || toolCallId === "") continue;
    if (type === "function_call" && typeof name === "string") toolOfCall.set(toolCallId, name);
    if (type === "function_call_output" && isContent(output)) {
      results.push({ toolCallId, tool: toolOfCall.get(toolCallId), text: textOf(output), failed: false });
    }
  }
  return results;
}

function messagesToolResults(messages: unknown, toolOfCall: Map<string, string>): ToolResult[] {
  if (!Array.isArray(messages)) return [];
  const results: ToolResult[] = [];
  for (const message of messages as readonly unknown[]) {
    if (!isObject(message) || !Array.isArray(message["content"])) continue;
    for (const block of message["content"] as readonly unknown[]) {
      if (!isObject(block)) continue;
      const { type, id, name, tool_use_id: toolCallId, content } = block;
      if (type === "tool_use" && typeof id === "string" && typeof name === "string") toolOfCall.set(id, name);
      if (type !== "tool_result" || typeof toolCallId !== "string" || toolCallId === "" || !isContent(content))
        continue;
      const failed = block["is_error"] === true;
      results.push({ toolCallId, tool: toolOfCall.get(toolCallId), text: textOf(content), failed });
    }
  }
  return results;
}

function isContent(content: unknown): content is string | readonly unknown[] | null | undefined {
  return content === undefined || content === null || typeof content === "string" || Array.isArray(content);
}

/** The texts of content in parts (`text`, or the Responses API's `input_text` and `output_text`). */
function textOf(content: string | readonly unknown[] | null | undefined): string {
  if (typeof content === "string") return content;
  return (content ?? [])
    .map((part) => (isObject(part) && typeof part["text"] === "string" ? part["text"] : ""))
    .join("");
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
