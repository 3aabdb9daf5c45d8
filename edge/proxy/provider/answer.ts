import { FulgurError } from "#shared/errors.ts";
import {
  detailsIn,
  isObject,
  parseObject,
  usageOf,
  type Counted,
  type Json,
  type ToolCall,
  type Usage,
} from "../answer.ts";
import type { AnswerMessage } from "../dialect.ts";

/**
 * Reads what a provider answers in one dialect, for the record, and gives it on unchanged but for what is missing and
 * clients need. One reader reads one answer: `whole` once, or `take` for each event and then `ending`.
 */
export interface ProviderReader {
  /** A whole answer, made whole. */
  whole(answer: Json): Json;
  /**
   * The data of one server-sent event → what may be sent at once, as text.
   * @throws FulgurError ERR_UPSTREAM when it tells of a failure
   */
  take(data: string): string;
  /** Whether the event that ends an answer has come. */
  readonly ended: boolean;
  /** What was held back until the record is committed, made whole; nothing may be taken after it. */
  ending(): string;
  /** What was read so far. */
  readonly gathered: Gathered;
}

/** What the record of a provider's call says of its answer. */
export interface Gathered {
  readonly message: AnswerMessage;
  readonly finishReason: string | null;
  readonly usage: Usage;
  /** The model that the provider says answered. */
  readonly model: string | null;
}

/** How many bytes of text a token has where a provider does not count; budgets and usage need a number all the same. */
const BYTES_PER_TOKEN = 4;

/** Tokens of a text, guessed. */
export function guessTokens(characters: number): number {
  return Math.ceil(characters / BYTES_PER_TOKEN);
}

/** What a provider has counted so far. */
export type PartlyCounted = { readonly [Field in keyof Counted]?: number | undefined };

/** Usage as the provider counted it; what it did not count is guessed from the texts. */
export function wholeUsage(
  counted: PartlyCounted,
  texts: { readonly promptCharacters: number; readonly message: AnswerMessage },
): Usage {
  return usageOf({
    ...counted,
    prompt: counted.prompt ?? guessTokens(texts.promptCharacters),
    completion: counted.completion ?? guessTokens(charactersOf(texts.message)),
  });
}

/** A chat's or a completion's usage; what it does not say stays as it was counted before. */
export function countedIn(usage: unknown, before: PartlyCounted): PartlyCounted {
  const given = objectOr(usage);
  const { cached, reasoning } = detailsIn(given);
  return {
    prompt: count(given["prompt_tokens"]) ?? before.prompt,
    completion: count(given["completion_tokens"]) ?? before.completion,
    cached: cached ?? before.cached,
    reasoning: reasoning ?? before.reasoning,
  };
}

function charactersOf({ content, reasoning, toolCalls }: AnswerMessage): number {
  const called = toolCalls.reduce((sum, call) => sum + charactersOfCall(call), 0);
  return (content?.length ?? 0) + (reasoning?.length ?? 0) + called;
}

function charactersOfCall({ function: { name, arguments: text } }: ToolCall): number {
  return name.length + text.length;
}

/** An object with the fields that it lacks, or that are null where clients need a value. */
export function fillIn(given: Json, defaults: Json): Json {
  const whole: Json = { ...given };
  for (const [key, value] of Object.entries(defaults)) whole[key] ??= value;
  return whole;
}

/** An object where one was sent, else an empty one. */
export function objectOr(value: unknown): Json {
  return isObject(value) ? value : {};
}

/** Why, in the provider's own words: its `error` is an object with a message, or a text. */
export function reasonOf(error: unknown): string {
  const message = isObject(error) ? error["message"] : error;
  return typeof message === "string" ? message.slice(0, 500) : "no reason given";
}

/** A provider's answer that cannot be given on. */
export function failed(what: string): FulgurError {
  return new FulgurError("ERR_UPSTREAM", `the provider's ${what}`);
}

/** An event of a chat's or a completion's stream. @throws FulgurError ERR_UPSTREAM where it tells of a failure or is none */
export function chunkOf(data: string): Json {
  const chunk = parseObject(data);
  if (chunk === undefined) throw failed("stream holds an event that is not a JSON object");
  if (isObject(chunk["error"])) throw failed(`stream failed: ${reasonOf(chunk["error"])}`);
  return chunk;
}

/** A number where one was sent. */
export function count(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : undefined;
}
