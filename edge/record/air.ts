import type { AgentSettings } from "#shared/agent-settings.ts";
import { newId } from "#shared/ids.ts";
import type { NewReward } from "#shared/store/rewards.ts";
import type { Json } from "#shared/tables.ts";
import { isSuccess } from "./success.ts";
import { chatToolResults } from "./tool-results.ts";

/** What of an agent's settings its AIR signals come from. */
export interface AirSettings {
  /** Weight w of each rewarded tool by name, such as `{ memory: 0.3, search: 0.2 }`; other tools earn nothing. */
  readonly tools: AgentSettings["tools"];
  /** When a tool's result counts as success; the default rules where it has none. */
  readonly success?: AgentSettings["success"];
}

export interface AirOptions extends AirSettings {
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly attempt: number;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

/** What became of one tool call. */
export interface ToolOutcome {
  readonly toolCallId: string;
  readonly tool: string;
  readonly succeeded: boolean;
}

/** Where an outcome was seen: a later request's tool message, an `execute_tool` span, or an explicit event. */
export type AirChannel = "message" | "span" | "event";

/** Ids become part of a key; one that no proxy of ours made may be of any length. */
export const MAX_TOOL_CALL_ID = 256;

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
  const found = new Map<string, NewReward>();
  for (const { toolCallId, tool, text } of chatToolResults(messages)) {
    // Judging a result may parse all of it, so what earns nothing is not looked at.
    if (tool === undefined || found.has(toolCallId) || weightOf(options, tool) === 0) continue;
    const succeeded = judgeTool(options, tool, text);
    const reward = succeeded === undefined ? undefined : airReward({ toolCallId, tool, succeeded }, options);
    if (reward !== undefined) found.set(toolCallId, reward);
  }
  return [...found.values()];
}

/**
 * The reward of one tool call, whichever way its outcome was seen: the key is the same for all of them, so the first that
 * is stored stays and the others change nothing.
 * @returns undefined where the agent's settings give the tool no weight, or the id is too long to be a key
 */
export function airReward(
  outcome: ToolOutcome,
  options: AirOptions,
  channel: AirChannel = "message",
): NewReward | undefined {
  const { toolCallId, tool, succeeded } = outcome;
  const { tenantId, rolloutId, attempt, now } = options;
  const weight = weightOf(options, tool);
  if (weight === 0 || toolCallId === "" || toolCallId.length > MAX_TOOL_CALL_ID) return undefined;
  const detail: Json = { tool_call_id: toolCallId, succeeded, seen: channel };
  return {
    id: newId("reward"),
    tenantId,
    key: `air:${rolloutId}:${attempt}:${toolCallId}`,
    rolloutId,
    attempt,
    callId: null,
    source: "air",
    name: tool,
    value: succeeded ? weight : -weight,
    detail,
    createdAt: now,
  };
}

/** Whether a tool's result text tells of success by that tool's rules; undefined where they cannot be applied. */
export function judgeTool({ success = {} }: AirSettings, tool: string, text: string): boolean | undefined {
  return isSuccess(text, Object.hasOwn(success, tool) ? success[tool] : undefined);
}

function weightOf({ tools }: AirSettings, tool: string): number {
  return Object.hasOwn(tools, tool) ? (tools[tool] ?? 0) : 0;
}
