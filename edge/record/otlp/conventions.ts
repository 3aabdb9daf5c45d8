import type { Json } from "#shared/tables.ts";
import type { Attributes, TelemetryEvent, TelemetrySpan } from "./telemetry.ts";

/**
 * What a span says about an agent, by OpenTelemetry's GenAI conventions and the older names still in use: AI SDK 5
 * (`ai.*`), OpenInference (`openinference.span.kind`), OpenLLMetry (`traceloop.*`), LangSmith (`langsmith.*`).
 */

export type SpanKind = "agent" | "tool" | "retrieval" | "llm" | "evaluation" | "other";

const KIND_OF: Readonly<Record<string, SpanKind>> = {
  chat: "llm",
  text_completion: "llm",
  generate_content: "llm",
  embeddings: "llm",
  llm: "llm",
  embedding: "llm",
  execute_tool: "tool",
  tool: "tool",
  invoke_agent: "agent",
  create_agent: "agent",
  invoke_workflow: "agent",
  agent: "agent",
  workflow: "agent",
  chain: "agent",
  retrieval: "retrieval",
  retriever: "retrieval",
  reranker: "retrieval",
  evaluator: "evaluation",
};

const KIND_KEYS = ["gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind", "langsmith.span.kind"];

export function kindOf({ attributes, name }: Pick<TelemetrySpan, "attributes" | "name">): SpanKind {
  for (const key of KIND_KEYS) {
    const value = attributes[key];
    const kind = typeof value === "string" ? KIND_OF[value.toLowerCase()] : undefined;
    if (kind !== undefined) return kind;
  }
  if (name === "ai.toolCall") return "tool";
  return name.startsWith("execute_tool ") ? "tool" : "other";
}

/** A tool run that a span tells of. */
export interface SpannedTool {
  /** Joins it to the call that asked for it; null where the framework does not say. */
  readonly toolCallId: string | null;
  readonly tool: string;
  /** The result's text; null where the span holds none. */
  readonly result: string | null;
  readonly failed: boolean;
}

const TOOL_ID_KEYS = ["gen_ai.tool.call.id", "ai.toolCall.id", "tool_call.id", "tool.call_id"];
const TOOL_NAME_KEYS = [
  "gen_ai.tool.name",
  "ai.toolCall.name",
  "tool.name",
  "traceloop.entity.name",
  "tool_call.function.name",
];
const TOOL_RESULT_KEYS = ["gen_ai.tool.call.result", "ai.toolCall.result", "output.value", "traceloop.entity.output"];

/** Undefined where the span is not a tool's, or names none. */
export function toolOf(span: TelemetrySpan): SpannedTool | undefined {
  if (kindOf(span) !== "tool") return undefined;
  const { attributes } = span;
  const tool = firstText(attributes, TOOL_NAME_KEYS) ?? /^execute_tool (.+)$/.exec(span.name)?.[1];
  if (tool === undefined) return undefined;
  const failed =
    span.failed || attributes["error.type"] !== undefined || span.events.some((event) => event.name === "exception");
  return {
    toolCallId: firstText(attributes, TOOL_ID_KEYS) ?? null,
    tool,
    result: firstText(attributes, TOOL_RESULT_KEYS) ?? null,
    failed,
  };
}

/** A score that somebody gave, as the event `gen_ai.evaluation.result`. */
export interface Evaluation {
  readonly name: string;
  readonly value: number;
  readonly explanation: string | null;
  /** The answer it is about; null where it is about the whole run. */
  readonly responseId: string | null;
}

const EVALUATION_EVENT = "gen_ai.evaluation.result";
const PASSING_LABELS = new Set(["pass", "passed", "correct", "relevant", "true", "yes", "good"]);
const FAILING_LABELS = new Set(["fail", "failed", "incorrect", "irrelevant", "not_relevant", "false", "no", "bad"]);

/** Undefined where the event is something else; `"unreadable"` where it has neither a score nor a known label. */
export function evaluationOf({ name, attributes }: TelemetryEvent): Evaluation | "unreadable" | undefined {
  if (name !== EVALUATION_EVENT) return undefined;
  const score = attributes["gen_ai.evaluation.score.value"];
  const label = attributes["gen_ai.evaluation.score.label"];
  const value = typeof score === "number" ? score : labelValue(label ?? null);
  if (value === undefined || Math.abs(value) > 1e6) return "unreadable";
  return {
    name: (firstText(attributes, ["gen_ai.evaluation.name"]) ?? "evaluation").slice(0, 128),
    value,
    explanation: firstText(attributes, ["gen_ai.evaluation.explanation"])?.slice(0, 2000) ?? null,
    responseId: responseIdOf(attributes),
  };
}

function labelValue(label: Json): number | undefined {
  if (typeof label !== "string") return undefined;
  const word = label.toLowerCase();
  return PASSING_LABELS.has(word) ? 1 : FAILING_LABELS.has(word) ? 0 : undefined;
}

/** The id of the LLM answer that a span or event is about: the call's id, where the answer came from this edge. */
export function responseIdOf(attributes: Attributes): string | null {
  return firstText(attributes, ["gen_ai.response.id", "ai.response.id", "llm.response.id"]) ?? null;
}

/** The id of the conversation, which agents also give as their session. */
export function conversationIdOf(attributes: Attributes): string | null {
  return (
    firstText(attributes, ["gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"]) ??
    null
  );
}

/** Our own attribute, for whoever can set one: a span's, or its resource's (OTEL_RESOURCE_ATTRIBUTES). */
export const ROLLOUT_ATTRIBUTE = "fulgur.rollout_id";

function firstText(attributes: Attributes, keys: readonly string[]): string | undefined {
  for (const key of keys) {
    const value = attributes[key];
    if (typeof value === "string" && value !== "") return value;
    if (value !== null && typeof value === "object") return JSON.stringify(value);
  }
  return undefined;
}
