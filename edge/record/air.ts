import { z } from "zod";
import { newId } from "#shared/ids.ts";
import type { NewReward } from "#shared/store/rewards.ts";

export interface AirOptions {
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly attempt: number;
  /** Weight w of each rewarded tool by name, such as `{ memory: 0.3, search: 0.2 }`; other tools earn nothing. */
  readonly tools: Readonly<Record<string, number>>;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

/**
 * Automatic intermediate rewards: each tool result seen in a chat request becomes +w of its tool where the tool
 * succeeded and −w where it failed. The idempotency key is of the tool call, so a result that comes back in every
 * later request is one reward.
 *
 * Results are joined to their calls by `tool_call_id` alone: frameworks rewrite arguments, reorder keys and rename
 * messages, but ids come back unchanged. A result whose call is not in the request is read by its own `name`, if any.
 * @param messages the request's `messages`, as they came; whatever is not a tool message of the known form is skipped
 * @returns at most one reward per tool call id, in the order of the results
 * @see Luo et al. 2025, arXiv:2508.03680: intermediate rewards from what is observed of tool calls
 */
export function airRewards(messages: unknown, options: AirOptions): NewReward[] {
  const { tenantId, rolloutId, attempt, tools, now } = options;
  const seen = new Set<string>();
  const found: NewReward[] = [];
  for (const { toolCallId, tool, succeeded } of toolOutcomes(messages)) {
    const weight = Object.hasOwn(tools, tool) ? tools[tool] : undefined;
    if (weight === undefined || weight === 0 || seen.has(toolCallId)) continue;
    seen.add(toolCallId);
    found.push({
      id: newId("reward"),
      tenantId,
      key: `air:${rolloutId}:${attempt}:${toolCallId}`,
      rolloutId,
      attempt,
      callId: null,
      source: "air",
      name: tool,
      value: succeeded ? weight : -weight,
      detail: { tool_call_id: toolCallId, succeeded },
      createdAt: now,
    });
  }
  return found;
}

/** What became of one tool call, as a chat request shows it. */
export interface ToolOutcome {
  readonly toolCallId: string;
  readonly tool: string;
  readonly succeeded: boolean;
}

/** The tool results of a chat request with the names of their tools, in order. */
export function toolOutcomes(messages: unknown): ToolOutcome[] {
  if (!Array.isArray(messages)) return [];
  const toolOfCall = new Map<string, string>();
  const outcomes: ToolOutcome[] = [];
  for (const message of messages as readonly unknown[]) {
    const assistant = assistantMessage.safeParse(message);
    if (assistant.success) {
      for (const call of assistant.data.tool_calls) toolOfCall.set(call.id, call.function.name);
      continue;
    }
    const result = toolMessage.safeParse(message);
    if (!result.success) continue;
    const { tool_call_id: toolCallId, name, content } = result.data;
    const tool = toolOfCall.get(toolCallId) ?? name;
    if (tool !== undefined && tool !== null) outcomes.push({ toolCallId, tool, succeeded: isSuccess(textOf(content)) });
  }
  return outcomes;
}

/** The names of the tools that an assistant's message calls, in order; none where it is not of the chat form. */
export function toolsCalled(message: unknown): string[] {
  const assistant = assistantMessage.safeParse(message);
  return assistant.success ? assistant.data.tool_calls.map((call) => call.function.name) : [];
}

/**
 * Whether a tool's result text tells of success. A failure is a JSON object with a truthy `error` (`"error": null`
 * is how many tools say that all went well), or a text that begins with the word "error".
 */
export function isSuccess(text: string): boolean {
  const trimmed = text.trimStart();
  if (/^error/i.test(trimmed)) return false;
  // Parsing is worth its cost only where an `error` key can be there at all.
  if (!trimmed.startsWith("{") || !trimmed.includes("error")) return true;
  try {
    const value: unknown = JSON.parse(trimmed);
    return !(typeof value === "object" && value !== null && Boolean(Reflect.get(value, "error")));
  } catch {
    return true;
  }
}

const assistantMessage = z.looseObject({
  role: z.literal("assistant"),
  tool_calls: z.array(z.looseObject({ id: z.string().min(1), function: z.looseObject({ name: z.string() }) })),
});

const toolMessage = z.looseObject({
  role: z.literal("tool"),
  // The id becomes part of a key: one that no proxy of ours made may be of any length.
  tool_call_id: z.string().min(1).max(256),
  name: z.string().nullish(),
  content: z.union([z.string(), z.array(z.unknown())]).nullish(),
});

const textPart = z.looseObject({ type: z.literal("text"), text: z.string() });

function textOf(content: z.infer<typeof toolMessage>["content"]): string {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => textPart.safeParse(part).data?.text ?? "").join("");
}
