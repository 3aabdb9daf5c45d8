import { RE2JS } from "re2js";
import { FulgurError, messageOf } from "#shared/errors.ts";

/**
 * Regular expressions that tenants write, matched in time linear in the text: a native RegExp can be made to run for
 * hours by `(a+)+$`, and a judge runs where everybody's rollouts are finished. RE2 (re2js, its port without native code)
 * has no look-around and no back-references, which cannot be matched that way.
 */
export interface Pattern {
  /** How many capturing groups there are. */
  readonly groups: number;
  /** The leftmost match and its first group. */
  search(text: string): PatternMatch | undefined;
  /** Whether the whole text is a match. */
  matchesWhole(text: string): boolean;
  /** The text with every match, one after the other from the left, replaced by a text as it is. */
  replaceAll(text: string, replacement: string): string;
}

export interface PatternMatch {
  readonly match: string;
  /** Undefined where the first group took no part in the match. */
  readonly group: string | undefined;
}

/** Repetitions are written out: `((a{50}){50}){50}` would fill memory before it matched anything. */
const MAX_PROGRAM = 5000;
const MAX_CACHED = 200;
const compiled = new Map<string, Pattern>();

/**
 * Compiles a pattern in RE2's syntax; the last few hundred are kept, since each task of an agent brings the same two.
 * @throws FulgurError ERR_INVALID_REQUEST when it is malformed, needs what RE2 leaves out, or is too large
 */
export function compilePattern(source: string): Pattern {
  const known = compiled.get(source);
  if (known !== undefined) return known;
  const pattern = compile(source);
  if (compiled.size >= MAX_CACHED) compiled.clear();
  compiled.set(source, pattern);
  return pattern;
}

function compile(source: string): Pattern {
  let regex: RE2JS;
  try {
    regex = RE2JS.compile(RE2JS.translateRegExp(source));
  } catch (cause) {
    throw refused(source, messageOf(cause), cause);
  }
  if (regex.programSize() > MAX_PROGRAM) throw refused(source, "it is too large; use smaller repetitions");
  const groups = regex.groupCount();
  return {
    groups,
    search(text) {
      const matcher = regex.matcher(text);
      if (!matcher.find()) return undefined;
      return { match: matcher.group() ?? "", group: (groups > 0 ? matcher.group(1) : undefined) ?? undefined };
    },
    matchesWhole: (text) => regex.matches(text),
    replaceAll(text, replacement) {
      const matcher = regex.matcher(text);
      let replaced = "";
      let from = 0;
      while (matcher.find()) {
        replaced += text.slice(from, matcher.start()) + replacement;
        from = matcher.end();
      }
      return from === 0 && replaced === "" ? text : replaced + text.slice(from);
    },
  };
}

function refused(source: string, why: string, cause?: unknown): FulgurError {
  return new FulgurError(
    "ERR_INVALID_REQUEST",
    `the pattern ${JSON.stringify(source)} cannot be used: ${why} (RE2 syntax: no look-around, no back-references)`,
    { cause },
  );
}
