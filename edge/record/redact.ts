import type { Redaction } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import type { CallRecord } from "#shared/store/calls.ts";
import { compilePattern } from "./pattern.ts";

/** What a tenant does not want kept is hidden here, before anything is stored. Pure; it knows no rollouts. */

export interface Redacted {
  readonly text: string;
  /** Whether anything was hidden; the text is untouched, to the byte, where not. */
  readonly changed: boolean;
}

type JsonValue = null | boolean | number | string | JsonValue[] | { [key: string]: JsonValue };

/**
 * A text with what the rules find replaced. In a JSON object or list, patterns are looked for in every string (a
 * string that is JSON itself, such as a tool call's arguments, is a text like any other) and number, paths hide the value that they lead to;
 * keys stay. In any other text, patterns alone are looked for.
 * @throws FulgurError ERR_INVALID_REQUEST where a rule cannot be used: nothing may be stored then (see {@link checkRedaction})
 */
export function redact(text: string, rules: readonly Redaction[]): Redacted {
  if (rules.length === 0) return { text, changed: false };
  const value = structureOf(text);
  if (value === undefined) {
    const hidden = hidePatterns(text, rules);
    return { text: hidden, changed: hidden !== text };
  }
  let hidden = value;
  try {
    // Paths first: a pattern's replacement must not keep a path from what it leads to.
    for (const rule of rules) if ("path" in rule) hidden = hidePath(hidden, pathOf(rule.path), rule.replacement);
    hidden = mapTexts(hidden, (each) => hidePatterns(each, rules));
    return hidden === value ? { text, changed: false } : { text: JSON.stringify(hidden), changed: true };
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new FulgurError("ERR_INVALID_REQUEST", "the JSON is nested too deeply to be redacted", { cause });
  }
}

/**
 * A call's record with its request and response redacted. One in which anything was hidden keeps no token ids, no token
 * texts and no part in a shared prefix, which would tell what was hidden, and is not trainable: its error is `redacted`.
 * @throws FulgurError ERR_INVALID_REQUEST where a rule cannot be used
 */
export function redactCall(record: CallRecord, rules: readonly Redaction[]): CallRecord {
  if (rules.length === 0) return record;
  const request = redact(record.request, rules);
  const response = record.response === null ? { text: null, changed: false } : redact(record.response, rules);
  // What an upstream refused it may quote.
  const error = record.error === null || record.error === undefined ? null : redact(record.error, rules).text;
  if (!request.changed && !response.changed) return { ...record, error };
  return {
    ...record,
    request: request.text,
    response: response.text,
    promptTokenIds: null,
    responseTokenIds: null,
    behaviourLogprobs: null,
    responseTokens: null,
    prefixCallId: null,
    prefixTokens: 0,
    trainable: false,
    error: error ?? "redacted",
  };
}

/**
 * Refuses, when an agent is set up, a rule that could not be applied.
 * @throws FulgurError ERR_INVALID_REQUEST saying why
 */
export function checkRedaction(rule: Redaction): void {
  if ("path" in rule) pathOf(rule.path);
  else compilePattern(rule.pattern);
}

function structureOf(text: string): JsonValue | undefined {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return undefined;
  }
}

function hidePatterns(text: string, rules: readonly Redaction[]): string {
  let hidden = text;
  for (const rule of rules) {
    if ("pattern" in rule) hidden = compilePattern(rule.pattern).replaceAll(hidden, rule.replacement);
  }
  return hidden;
}

/** Strings, and numbers as they are written; the same object where nothing changes, so that this can be told. */
function mapTexts(value: JsonValue, map: (text: string) => string): JsonValue {
  if (typeof value === "string") return map(value);
  if (typeof value !== "number") return mapChildren(value, (child) => mapTexts(child, map));
  const text = String(value);
  const mapped = map(text);
  return mapped === text ? value : mapped;
}

const ANY = Symbol("any");
type Step = string | typeof ANY;

function hidePath(value: JsonValue, [step, ...rest]: readonly Step[], replacement: string): JsonValue {
  if (step === undefined) return value === replacement ? value : replacement;
  return mapChildren(value, (child, key) =>
    step === ANY || step === key ? hidePath(child, rest, replacement) : child,
  );
}

/** The value with its children mapped; itself where all of them stay. */
function mapChildren(value: JsonValue, map: (child: JsonValue, key: string) => JsonValue): JsonValue {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    const mapped = value.map((child, at) => map(child, String(at)));
    return mapped.every((child, at) => child === value[at]) ? value : mapped;
  }
  const entries = Object.entries(value).map(([key, child]) => [key, map(child, key)] as const);
  return entries.every(([key, child]) => child === value[key]) ? value : Object.fromEntries(entries);
}

/**
 * `$.user.email`, `$.messages.*.content`, `$.messages[0].name`, `$["a key"]`: names, positions and `*` for any of either.
 * @throws FulgurError ERR_INVALID_REQUEST
 */
function pathOf(path: string): Step[] {
  const steps: Step[] = [];
  let at = 1;
  while (at < path.length) {
    STEP.lastIndex = at;
    const found = STEP.exec(path);
    const name = found?.[1] ?? found?.[2] ?? found?.[3];
    if (found === null || name === undefined) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        `the path ${JSON.stringify(path)} cannot be used: write it as $.name.*.name, with positions as [0]`,
      );
    }
    steps.push(name === "*" && found[3] === undefined ? ANY : name);
    at = STEP.lastIndex;
  }
  return steps;
}

/** `.name` or `.*`, `[0]` or `[*]`, `["name"]`; a dot may stand before a bracket. */
const STEP = /\.([^.[\]"*]+|\*)|\.?\[(\d+|\*)\]|\.?\["([^"]*)"\]/y;
