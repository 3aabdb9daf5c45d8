import type { Json, ToolCall, Usage } from "./answer.ts";
import type { ChatRequest } from "./chat/request.ts";

/**
 * A wire dialect in front of a policy: its requests become chat requests for inference, and what inference answers becomes
 * the dialect's answer, whole or as events. Pure but for the history that a stateful dialect asks for; call.ts does the rest.
 */
export interface Dialect {
  readonly name: DialectName;
  /** @throws FulgurError ERR_INVALID_REQUEST naming the field and what was wanted; nothing is dropped in silence */
  parse(text: string, options: ParseOptions): Promise<DialectRequest> | DialectRequest;
  /** Any failure in the dialect's own error body and status. */
  errorResponse(thrown: unknown): Response;
}

export const DIALECTS = ["chat", "completions", "responses", "messages", "embeddings"] as const;
export type DialectName = (typeof DIALECTS)[number];

export interface ParseOptions {
  /** The chat messages of an earlier answer's whole conversation, its answer included (`previous_response_id`). */
  readonly history: (responseId: string) => Promise<readonly ChatMessage[]>;
  /** The assistant's message of an earlier answer alone (an item that is named by its id). */
  readonly answer?: (responseId: string) => Promise<ChatMessage>;
}

export type ChatMessage = ChatRequest["messages"][number];

export interface DialectRequest {
  /** What inference is asked; `chat.stream` says how the client wants its answer. */
  readonly chat: ChatRequest;
  /** The messages that a later request carries on with: `chat.messages`, unless some (instructions) are of this one alone. */
  readonly conversation?: readonly ChatMessage[];
  /** The answer's JSON body. */
  whole(answer: Answer): Json;
  /** A fresh encoder of one streamed answer. */
  stream(head: AnswerHead): AnswerEncoder;
}

export interface AnswerHead {
  /** The call's id; dialects derive their answer's id from it (`resp_…`, `msg_…`), and find it back from that. */
  readonly id: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  /** The model name that the agent asked for. */
  readonly model: string;
}

/** A whole answer, after it was made whole: ids, a finish reason and usage are always there. */
export interface Answer extends AnswerHead {
  readonly message: AnswerMessage;
  /** OpenAI's chat words: `stop`, `length`, `tool_calls`, `content_filter`. */
  readonly finishReason: string;
  readonly usage: Usage;
  /** The chat choice's `logprobs` where the agent asked for them, else null. */
  readonly logprobs: Json | null;
}

export interface AnswerMessage {
  readonly content: string | null;
  readonly reasoning: string | null;
  readonly toolCalls: readonly ToolCall[];
}

/**
 * Turns the pieces of one streamed answer into the dialect's server-sent events; each method returns the bytes to send, as
 * text, which may be empty. The order is start, any pieces, then one of end and fail.
 */
export interface AnswerEncoder {
  start(): string;
  text(delta: string, logprobs: Json | null): string;
  reasoning(delta: string): string;
  /** The first piece of a tool call has `id` and `name`; `argumentsDelta` may be empty. */
  toolCall(piece: ToolCallPiece): string;
  end(end: AnswerEnd): string;
  fail(thrown: unknown): string;
}

export interface ToolCallPiece {
  readonly index: number;
  readonly id?: string;
  readonly name?: string;
  readonly argumentsDelta: string;
}

export interface AnswerEnd {
  readonly finishReason: string;
  readonly usage: Usage;
}
