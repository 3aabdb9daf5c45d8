import { FulgurError } from "#shared/errors.ts";
import type { Judge } from "#shared/tables.ts";
import { compilePattern } from "./pattern.ts";

/** Share of the terminal reward that the right answer earns; the rest is for its form. */
const CORRECTNESS_SHARE = 0.9;
const FORMAT_SHARE = 0.1;

/** A longer result is judged by its end, where answers stand, and is not well formed. */
export const MAX_JUDGED_CHARACTERS = 16_384;

/** What a judge says of a result; each part is 0 or 1, `terminal` their weighted sum. */
export interface Verdict {
  readonly correctness: number;
  readonly format: number;
  /** 0.9·correctness + 0.1·format. */
  readonly terminal: number;
}

/**
 * Judges the text that an agent ended with.
 * @param result null (an agent that ended without a word) is neither right nor well formed
 * @throws FulgurError ERR_INVALID_REQUEST when a pattern of the judge cannot be used (see {@link checkJudge})
 */
export function judgeResult(judge: Judge, result: string | null): Verdict {
  const answerPattern = compilePattern(judge.answer_pattern);
  const formatPattern = compilePattern(judge.format_pattern);
  if (result === null) return verdict(false, false);
  const answer = answerPattern.search(result.slice(-MAX_JUDGED_CHARACTERS))?.group;
  return verdict(
    answer === judge.expected,
    result.length <= MAX_JUDGED_CHARACTERS && formatPattern.matchesWhole(result),
  );
}

/**
 * Refuses, when a task is created, a judge that could not judge.
 * @throws FulgurError ERR_INVALID_REQUEST when a pattern cannot be used, or the answer's has no group
 */
export function checkJudge(judge: Judge): void {
  compilePattern(judge.format_pattern);
  if (compilePattern(judge.answer_pattern).groups > 0) return;
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    `answer_pattern wants a group around the answer, ${JSON.stringify(judge.answer_pattern)} has none; write it as "…(…)…"`,
  );
}

function verdict(correct: boolean, wellFormed: boolean): Verdict {
  const correctness = correct ? 1 : 0;
  const format = wellFormed ? 1 : 0;
  return { correctness, format, terminal: CORRECTNESS_SHARE * correctness + FORMAT_SHARE * format };
}
