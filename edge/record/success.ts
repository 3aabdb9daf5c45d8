import { messageOf } from "#shared/errors.ts";
import type { SuccessRules } from "#shared/agent-settings.ts";
import { logger } from "#shared/log.ts";
import { compilePattern } from "./pattern.ts";

/** A longer result is looked at as far as this; rules that ask about its whole (empty, JSON) take all of it. */
export const MAX_MATCHED_CHARACTERS = 65_536;

const log = logger("air");

/**
 * Whether a tool's result tells of success, by its tool's rules; every rule that is given must hold. Without rules a
 * failure is a JSON object with a truthy `error` (`"error": null` is how many tools say that all went well), or a text
 * that begins with the word "error".
 * @returns undefined where a pattern of the rules cannot be used: nothing is known then, and the call that brought the
 *   result must not fail for it
 */
export function isSuccess(text: string, rules?: SuccessRules): boolean | undefined {
  if (rules === undefined) return isSuccessByDefault(text);
  try {
    return !isFailure(text, rules);
  } catch (thrown) {
    log.warn("rules.unusable", { reason: messageOf(thrown) });
    return undefined;
  }
}

/**
 * Refuses, when an agent is set up, rules that could not be applied.
 * @throws FulgurError ERR_INVALID_REQUEST naming the pattern
 */
export function checkSuccessRules({ error_pattern: bad, success_pattern: good }: SuccessRules): void {
  if (bad !== undefined) compilePattern(bad);
  if (good !== undefined) compilePattern(good);
}

function isSuccessByDefault(text: string): boolean {
  const trimmed = text.trimStart();
  if (/^error/i.test(trimmed)) return false;
  // Parsing is worth its cost only where an `error` key can be there at all.
  if (!trimmed.startsWith("{") || !trimmed.includes("error")) return true;
  return !field(parsed(trimmed), "error");
}

function isFailure(text: string, rules: SuccessRules): boolean {
  const trimmed = text.trim();
  const value = trimmed.startsWith("{") || trimmed.startsWith("[") ? parsed(trimmed) : undefined;
  const matched = text.slice(0, MAX_MATCHED_CHARACTERS);
  const lower = trimmed.slice(0, MAX_MATCHED_CHARACTERS).toLowerCase();
  return (
    (rules.json_error_fields ?? []).some((name) => Boolean(field(value, name))) ||
    (rules.error_prefixes ?? []).some((prefix) => lower.startsWith(prefix.toLowerCase())) ||
    (rules.http_error_from !== undefined && statusOf(value) >= rules.http_error_from) ||
    (rules.empty_is_error === true && isEmpty(trimmed, value)) ||
    (rules.error_pattern !== undefined && compilePattern(rules.error_pattern).search(matched) !== undefined) ||
    (rules.success_pattern !== undefined && compilePattern(rules.success_pattern).search(matched) === undefined)
  );
}

/** An own field of a JSON object. */
function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.hasOwn(value, name)
    ? Reflect.get(value, name)
    : undefined;
}

/** The HTTP status that a JSON object tells, also as a text; 0 where it tells none. */
function statusOf(value: unknown): number {
  const told = field(value, "status") ?? field(value, "status_code");
  const status = typeof told === "number" || typeof told === "string" ? Number(told) : 0;
  return Number.isFinite(status) ? status : 0;
}

/** `""`, `null`, `[]`, `{}`, and a JSON text of nothing. */
function isEmpty(trimmed: string, value: unknown): boolean {
  if (trimmed === "" || trimmed === "null" || trimmed === '""') return true;
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
