import type { Json } from "#shared/tables.ts";
import { compilePattern } from "../pattern.ts";
import { cannotJudge } from "./contract.ts";

/**
 * The answer in a result: the first group of the pattern's first match (all of the match where it has no group), or the
 * whole text where there is no pattern.
 * @returns undefined where the pattern is not found
 */
export function extractAnswer(result: string, pattern: string | undefined): string | undefined {
  if (pattern === undefined) return result;
  const found = compilePattern(pattern).search(result);
  return found === undefined ? undefined : (found.group ?? found.match);
}

/**
 * The texts of which any is right: the one expected, or each of a list; numbers and truth values as they are written.
 * @throws FulgurError ERR_INVALID_REQUEST where nothing that can be compared is expected
 */
export function acceptedTexts(expected: Json): string[] {
  const list = Array.isArray(expected) ? expected : [expected];
  const texts = list.filter((each) => ["string", "number", "boolean"].includes(typeof each)).map(String);
  if (texts.length === 0 || texts.length < list.length) {
    throw cannotJudge("`expected` wants a text, a number or a list of them; give the task a judge with one");
  }
  return texts;
}
