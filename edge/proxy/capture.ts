import { packFloats, packIds } from "#shared/packed.ts";
import type { CallRecord } from "#shared/store/calls.ts";
import { parseServedName, servedName, versionName } from "#shared/words.ts";
import {
  firstChoice,
  isObject,
  readIds,
  readSampled,
  readUsage,
  type Json,
  type ToolCall,
  type Usage,
} from "./answer.ts";
import type { PolicyVersion } from "./resolve.ts";

/** What an agent's call was, before anything answered it. */
export interface CallStart {
  readonly id: string;
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly attempt: number;
  readonly mode: CallRecord["mode"];
  readonly dialect: string;
  readonly modelAsked: string;
  /** The request's JSON as the agent sent it. */
  readonly requestText: string;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
}

/** How a call ended. */
export interface CallEnd {
  readonly httpStatus: number;
  /** Why the agent did not get a whole answer, such as `client_disconnected`; null where it did. */
  readonly error: string | null;
  readonly now: number;
}

/**
 * What came of one call, gathered while the answer passes: {@link Capture.takeAnswer} for a whole answer,
 * {@link Capture.takeChunk} for each chunk of a stream.
 */
export class Capture {
  readonly start: CallStart;
  /** Of the agent's model name: the name that its map has, or `main`. */
  role = "main";
  /** The policy's version that was asked, or the frozen provider; neither before it is known. */
  target: PolicyVersion | undefined;
  provider: string | null = null;
  /** The name that a provider's model is metered under, `openai/gpt-5-mini`; a policy's is its version's. */
  usageModel: string | undefined;
  temperature: number | null = null;
  upstreamAttempts = 1;
  firstByteAt: number | undefined;
  /** As it came: of a policy, the name that inference serves the version under. */
  modelAnswered: string | null = null;
  finishReason: string | null = null;
  usage: Usage | undefined;
  content: string | null = null;
  reasoning: string | null = null;
  readonly toolCalls: ToolCall[] = [];
  /** Fields of a whole answer's message beyond the known ones, such as `reasoning_content`. */
  #message: Json | undefined;
  #messageText: string | undefined;
  #promptTokenIds: readonly number[] | undefined;
  readonly #responseTokenIds: number[] = [];
  readonly #logprobs: number[] = [];
  readonly #texts: string[] = [];

  constructor(start: CallStart) {
    this.start = start;
  }

  /** Reads ids, logprobs, usage and model of a whole answer; the message is what the agent is given. */
  takeAnswer(answer: Json, message: Json): void {
    const choice = firstChoice(answer);
    this.#takeFacts(answer, choice);
    this.#message = message;
    this.#messageText = undefined;
  }

  /** Reads one chunk of a stream. Deltas are gathered by stream.ts, which rewrites them on the way. */
  takeChunk(chunk: Json, choice: Json | undefined): void {
    this.#takeFacts(chunk, choice);
  }

  #takeFacts(answer: Json, choice: Json | undefined): void {
    if (typeof answer["model"] === "string") this.modelAnswered = answer["model"];
    this.usage = readUsage(answer) ?? this.usage;
    if (this.#promptTokenIds === undefined) {
      // At the top level in vLLM; some versions put it into the choice.
      this.#promptTokenIds = readIds(answer["prompt_token_ids"]) ?? readIds(choice?.["prompt_token_ids"]);
    }
    if (choice === undefined) return;
    const ids = readIds(choice["token_ids"]);
    if (ids !== undefined) for (const id of ids) this.#responseTokenIds.push(id);
    for (const { text, logprob } of readSampled(choice) ?? []) {
      this.#logprobs.push(logprob);
      if (text !== null) this.#texts.push(text);
    }
    if (typeof choice["finish_reason"] === "string") this.finishReason = choice["finish_reason"];
  }

  /** Tokens of prompt and answer, as far as they are known. */
  get tokens(): { readonly prompt: number; readonly completion: number } {
    return {
      prompt: this.usage?.prompt_tokens ?? this.#promptTokenIds?.length ?? 0,
      completion: this.usage?.completion_tokens ?? this.#responseTokenIds.length,
    };
  }

  /** As OpenAI counts it; counted from the ids where the endpoint sent none. */
  get wholeUsage(): Usage {
    const { prompt, completion } = this.tokens;
    return this.usage ?? { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
  }

  /** The assistant's message as the agent got it; null where nothing came. */
  get message(): Json | null {
    if (this.#message !== undefined) return this.#message;
    if (this.content === null && this.reasoning === null && this.toolCalls.length === 0) return null;
    return {
      role: "assistant",
      content: this.content,
      ...(this.reasoning === null ? {} : { reasoning_content: this.reasoning }),
      ...(this.toolCalls.length === 0 ? {} : { tool_calls: this.toolCalls }),
    };
  }

  /** A whole answer's message as JSON: the same text goes to the store and to the agent. */
  get messageText(): string | null {
    if (this.#messageText !== undefined) return this.#messageText;
    const { message } = this;
    if (message === null) return null;
    const text = JSON.stringify(message);
    if (this.#message !== undefined) this.#messageText = text;
    return text;
  }

  /**
   * The store's row. Trainable where the answer is whole and every sampled token came with its id; where log-probabilities
   * are missing only some algorithms can use it, and its error says so.
   */
  record(end: CallEnd): CallRecord {
    const { start, target } = this;
    const prompt = this.#promptTokenIds;
    const response = this.#responseTokenIds;
    const untrainable = end.error === null ? this.#untrainable() : null;
    return {
      id: start.id,
      tenantId: start.tenantId,
      rolloutId: start.rolloutId,
      attempt: start.attempt,
      mode: start.mode,
      ...(this.usageModel === undefined ? {} : { usageModel: this.usageModel }),
      role: this.role,
      dialect: start.dialect,
      modelAsked: start.modelAsked,
      policy: target?.policy ?? null,
      policyVersion: target?.version ?? null,
      provider: this.provider,
      modelAnswered: this.answeredAs,
      request: start.requestText,
      response: this.messageText,
      promptTokens: this.tokens.prompt,
      completionTokens: this.tokens.completion,
      promptTokenIds: prompt === undefined ? null : packIds(prompt),
      responseTokenIds: response.length === 0 ? null : packIds(response),
      behaviourLogprobs: this.#logprobs.length === 0 ? null : packFloats(this.#logprobs),
      responseTokens: response.length > 0 && this.#texts.length === response.length ? this.#texts : null,
      temperature: this.temperature,
      finishReason: this.finishReason,
      httpStatus: end.httpStatus,
      error: end.error ?? untrainable ?? this.#lacking(),
      trainable: end.error === null && untrainable === null,
      firstByteMs: this.firstByteAt === undefined ? null : this.firstByteAt - start.startedAt,
      latencyMs: end.now - start.startedAt,
      upstreamAttempts: this.upstreamAttempts,
      createdAt: start.startedAt,
    };
  }

  /** Why RL cannot train on a whole answer, or null. Endpoints are known to lose ids in streams and tool parsers. */
  #untrainable(): string | null {
    if (this.provider !== null) return "frozen";
    const ids = this.#responseTokenIds.length;
    if (this.#promptTokenIds === undefined || ids === 0) return "no_token_ids";
    if (this.usage !== undefined && this.usage.completion_tokens !== ids) return "token_ids_incomplete";
    return null;
  }

  #lacking(): string | null {
    return this.#logprobs.length === this.#responseTokenIds.length ? null : "logprobs_incomplete";
  }

  /** The name that inference is asked for; undefined where no policy answers. */
  get servedAs(): string | undefined {
    const { target, start } = this;
    return target === undefined ? undefined : servedName(start.tenantId, target.policy, target.version);
  }

  /** Whether the endpoint answered as another model than it was asked for. */
  get answeredByAnother(): boolean {
    return this.target !== undefined && this.modelAnswered !== this.servedAs;
  }

  /** Who answered, as the tenant names it; what other tenants have is not told. */
  get answeredAs(): string | null {
    const { target, modelAnswered, start } = this;
    if (target === undefined || modelAnswered === null) return modelAnswered;
    const served = parseServedName(modelAnswered);
    if (served === undefined) return modelAnswered;
    return served.tenantId === start.tenantId ? versionName(served.policy, served.version) : "another tenant's version";
  }
}

/** Tool calls of an answer made whole: ids that are not empty and not used twice, arguments as text. */
export function wholeToolCalls(value: unknown, newId: () => string): ToolCall[] {
  if (!Array.isArray(value)) return [];
  const seen = new Set<string>();
  const calls: ToolCall[] = [];
  for (const given of value as readonly unknown[]) {
    const called = isObject(given) ? given["function"] : undefined;
    if (!isObject(given) || !isObject(called)) continue;
    const id = typeof given["id"] === "string" && given["id"] !== "" && !seen.has(given["id"]) ? given["id"] : newId();
    seen.add(id);
    const { name, arguments: text } = called;
    calls.push({
      id,
      type: "function",
      function: {
        name: typeof name === "string" ? name : "",
        arguments: typeof text === "string" ? text : JSON.stringify(text ?? {}),
      },
    });
  }
  return calls;
}
