import { FulgurError, messageOf } from "#shared/errors.ts";

/** Codes of mistakes in the command itself; they end it with 2, everything else with 1. */
const USAGE_CODES: ReadonlySet<string> = new Set(["ERR_CONFIG", "ERR_INVALID_REQUEST"]);

/** What a command that failed says: the sentence alone, and the stack where the error is not one of ours. */
export function failureText(thrown: unknown): string {
  if (thrown instanceof FulgurError) return `fulgur: ${thrown.message}`;
  return `fulgur: ${messageOf(thrown)}\n${thrown instanceof Error ? (thrown.stack ?? "") : ""}`.trimEnd();
}

export function exitCodeOf(thrown: unknown): number {
  return thrown instanceof FulgurError && USAGE_CODES.has(thrown.code) ? 2 : 1;
}
