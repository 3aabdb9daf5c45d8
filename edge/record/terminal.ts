import type { Evaluator } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import type { Json, Judge, PatternJudge } from "#shared/tables.ts";
import { cannotJudge, type EvaluatorDeps, type Score, type SlowGiven } from "./evaluators/contract.ts";
import { checkEvaluator, evaluate, evaluateSlowly, isSlow, type SlowEvaluator } from "./evaluators/table.ts";
import { compilePattern } from "./pattern.ts";

/** Share of the terminal reward that the right answer earns, where an agent's settings do not say; the rest is for its form. */
export const CORRECTNESS_SHARE = 0.9;

/** A longer result is judged by its end, where answers stand, and is not well formed. */
export const MAX_JUDGED_CHARACTERS = 16_384;

/** What a judge says of a result; correctness and format are in [0, 1], `terminal` is their weighted sum. */
export interface Verdict extends Score {
  /** share·correctness + (1 − share)·format. */
  readonly terminal: number;
}

/** What judges a rollout: patterns, or an evaluator with what it compares with. */
export type ChosenJudge =
  | { readonly type: "patterns"; readonly judge: PatternJudge }
  | { readonly type: "evaluator"; readonly evaluator: Evaluator; readonly expected: Json };

/**
 * Who judges: the evaluator that is asked for in their place (a recomputation), else the task's own judge, else its
 * agent's evaluator. What is expected is always the task's.
 * @returns null where nobody does
 * @throws FulgurError ERR_INVALID_REQUEST where the task says what is expected and the agent has no evaluator
 */
export function chooseJudge(
  judge: Judge | null,
  agent: { readonly evaluator?: Evaluator | undefined } | undefined,
  instead?: Evaluator,
): ChosenJudge | null {
  const expected = judge?.expected ?? null;
  if (instead !== undefined) return { type: "evaluator", evaluator: instead, expected };
  if (judge !== null && "answer_pattern" in judge && "format_pattern" in judge) return { type: "patterns", judge };
  if (judge !== null && "type" in judge) return { type: "evaluator", evaluator: judge, expected };
  const evaluator = agent?.evaluator;
  if (evaluator !== undefined) return { type: "evaluator", evaluator, expected };
  if (judge === null) return null;
  throw cannotJudge("the task says what is expected, and its agent has no evaluator to compare with");
}

/** The evaluator of a judge that asks somebody else; undefined for one that judges from the text alone. */
export function slowEvaluatorOf(chosen: ChosenJudge): SlowEvaluator | undefined {
  return chosen.type === "evaluator" && isSlow(chosen.evaluator) ? chosen.evaluator : undefined;
}

/**
 * Judges the text that an agent ended with, from the text alone.
 * @param result null (an agent that ended without a word) is neither right nor well formed
 * @param share see {@link CORRECTNESS_SHARE}
 * @throws FulgurError ERR_INVALID_REQUEST when the judge cannot judge (see {@link checkJudge})
 */
export function judgeResult(judge: PatternJudge | ChosenJudge, result: string | null, share?: number): Verdict {
  const chosen: ChosenJudge = "type" in judge ? judge : { type: "patterns", judge };
  if (chosen.type === "patterns") return verdict(matchPatterns(chosen.judge, result), share);
  const { evaluator, expected } = chosen;
  if (isSlow(evaluator)) throw cannotJudge(`${evaluator.type} has to be asked, which this is no place for`);
  if (result === null) return verdict({ correctness: 0, format: 0 }, share);
  const score = evaluate(evaluator, { result: result.slice(-MAX_JUDGED_CHARACTERS), expected });
  return verdict(result.length > MAX_JUDGED_CHARACTERS ? { ...score, format: 0 } : score, share);
}

/** As {@link judgeResult}, by somebody who is asked. @throws whatever keeps it from judging */
export async function askJudge(
  evaluator: SlowEvaluator,
  given: Omit<SlowGiven, "result"> & { readonly result: string | null },
  options: { readonly deps: EvaluatorDeps; readonly share?: number | undefined },
): Promise<Verdict> {
  const { result } = given;
  if (result === null) return verdict({ correctness: 0, format: 0 }, options.share);
  const cut = { ...given, result: result.slice(-MAX_JUDGED_CHARACTERS) };
  return verdict(await evaluateSlowly(evaluator, cut, options.deps), options.share);
}

/** share·correctness + (1 − share)·format. */
export function verdict({ correctness, format }: Score, share = CORRECTNESS_SHARE): Verdict {
  // 1 − 0.9 is a hair below 0.1; rewards are read by people too.
  const rest = Number((1 - share).toFixed(12));
  return { correctness, format, terminal: share * correctness + rest * format };
}

/**
 * Refuses, when a task is created, a judge that could not judge.
 * @throws FulgurError ERR_INVALID_REQUEST when a pattern cannot be used, or the answer's has no group
 */
export function checkJudge(judge: Judge): void {
  if ("type" in judge) return checkEvaluator(judge);
  if (!("answer_pattern" in judge)) return;
  compilePattern(judge.format_pattern);
  if (compilePattern(judge.answer_pattern).groups > 0) return;
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    `answer_pattern wants a group around the answer, ${JSON.stringify(judge.answer_pattern)} has none; write it as "…(…)…"`,
  );
}

function matchPatterns(judge: PatternJudge, result: string | null): Score {
  const answerPattern = compilePattern(judge.answer_pattern);
  const formatPattern = compilePattern(judge.format_pattern);
  if (result === null) return { correctness: 0, format: 0 };
  const answer = answerPattern.search(result.slice(-MAX_JUDGED_CHARACTERS))?.group;
  const wellFormed = result.length <= MAX_JUDGED_CHARACTERS && formatPattern.matchesWhole(result);
  return { correctness: answer === judge.expected ? 1 : 0, format: wellFormed ? 1 : 0 };
}
