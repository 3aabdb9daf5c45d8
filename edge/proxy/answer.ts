/**
 * What inference answers in the vLLM dialect, read leniently: a whole chat completion or one chunk of a stream. Narrowed by
 * hand and not by zod: a stream has one of these per token, and this is where a proxy's time goes.
 */

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  /** Of the prompt's tokens; where the endpoint says so. */
  readonly prompt_tokens_details?: { readonly cached_tokens: number };
  /** Of the completion's; where the endpoint says so. */
  readonly completion_tokens_details?: { readonly reasoning_tokens: number };
}

export type Json = Record<string, unknown>;

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function parseObject(text: string): Json | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** The first choice; Fulgur asks for one answer only. */
export function firstChoice(answer: Json): Json | undefined {
  const { choices } = answer;
  const choice: unknown = Array.isArray(choices) ? choices[0] : undefined;
  return isObject(choice) ? choice : undefined;
}

export function readUsage(answer: Json): Usage | undefined {
  const { usage } = answer;
  if (!isObject(usage)) return undefined;
  const { prompt_tokens: prompt, completion_tokens: completion } = usage;
  if (typeof prompt !== "number" || typeof completion !== "number") return undefined;
  return usageOf({ ...detailsIn(usage), prompt, completion });
}

/** What was counted of a call's tokens. */
export interface Counted {
  readonly prompt: number;
  readonly completion: number;
  readonly cached?: number | undefined;
  readonly reasoning?: number | undefined;
}

export function usageOf({ prompt, completion, cached, reasoning }: Counted): Usage {
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    ...(cached === undefined ? {} : { prompt_tokens_details: { cached_tokens: cached } }),
    ...(reasoning === undefined ? {} : { completion_tokens_details: { reasoning_tokens: reasoning } }),
  };
}

/** The details that a chat's usage may have. */
export function detailsIn(usage: Json): Pick<Counted, "cached" | "reasoning"> {
  const { prompt_tokens_details: prompt, completion_tokens_details: completion } = usage;
  return { cached: numberIn(prompt, "cached_tokens"), reasoning: numberIn(completion, "reasoning_tokens") };
}

/** A field of what may be an object, where it is a number. */
export function numberIn(given: unknown, field: string): number | undefined {
  const value = isObject(given) ? given[field] : undefined;
  return typeof value === "number" && value >= 0 ? value : undefined;
}

/** Token ids, or undefined where the field is missing or holds anything but whole numbers. */
export function readIds(value: unknown): readonly number[] | undefined {
  if (!Array.isArray(value)) return undefined;
  const ids: readonly unknown[] = value;
  return ids.every(isId) ? ids : undefined;
}

function isId(value: unknown): value is number {
  return Number.isInteger(value);
}

export interface SampledToken {
  /** Its text as the endpoint names it; null where it does not. */
  readonly text: string | null;
  readonly logprob: number;
}

/** The sampled tokens of a choice, in order; undefined where one has no logprob. */
export function readSampled(choice: Json): SampledToken[] | undefined {
  const { logprobs } = choice;
  if (!isObject(logprobs) || !Array.isArray(logprobs["content"])) return undefined;
  const entries: readonly unknown[] = logprobs["content"];
  const sampled: SampledToken[] = [];
  for (const entry of entries) {
    if (!isObject(entry)) return undefined;
    const { token, logprob } = entry;
    if (typeof logprob !== "number") return undefined;
    sampled.push({ text: typeof token === "string" ? token : null, logprob });
  }
  return sampled;
}

/** A tool call as agents must get it: an id, a type, a name, arguments as text. */
export interface ToolCall {
  id: string;
  readonly type: "function";
  readonly function: { name: string; arguments: string };
}
