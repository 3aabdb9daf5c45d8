import type { Evaluator } from "#shared/agent-settings.ts";
import { compilePattern } from "../pattern.ts";
import type { Evaluate, EvaluateSlowly, EvaluatorDeps, Given, Score, SlowGiven } from "./contract.ts";
import { exactMatch } from "./exact-match.ts";
import { checkJsonSchema, jsonSchemaMatch } from "./json-schema.ts";
import { llmJudge } from "./llm-judge.ts";
import { numericMatch } from "./numeric.ts";
import { sqlMatch } from "./sql.ts";
import { tokenF1 } from "./token-f1.ts";
import { checkWorkerEvaluator, workerEvaluator } from "./worker.ts";

/** Which method judges for which `type`. */

type Slow = "sql" | "llm_judge" | "worker";
type Quick = Exclude<Evaluator["type"], Slow>;
export type QuickEvaluator = Extract<Evaluator, { type: Quick }>;
export type SlowEvaluator = Extract<Evaluator, { type: Slow }>;

const QUICK: { readonly [T in Quick]: Evaluate<T> } = {
  exact_match: exactMatch,
  token_f1: tokenF1,
  numeric: numericMatch,
  json_schema: jsonSchemaMatch,
};

const SLOW: { readonly [T in Slow]: EvaluateSlowly<T> } = {
  sql: sqlMatch,
  llm_judge: llmJudge,
  worker: workerEvaluator,
};

/** Whether an evaluator asks somebody else, which takes time and may fail. */
export function isSlow(evaluator: Evaluator): evaluator is SlowEvaluator {
  return Object.hasOwn(SLOW, evaluator.type);
}

export function evaluate(evaluator: QuickEvaluator, given: Given): Score {
  // The table's key and the function's parameter are the same type, which TypeScript does not see through a union.
  const method = QUICK[evaluator.type] as (evaluator: QuickEvaluator, given: Given) => Score;
  return method(evaluator, given);
}

export async function evaluateSlowly(evaluator: SlowEvaluator, given: SlowGiven, deps: EvaluatorDeps): Promise<Score> {
  const method = SLOW[evaluator.type] as (
    evaluator: SlowEvaluator,
    given: SlowGiven,
    deps: EvaluatorDeps,
  ) => Promise<Score>;
  return method(evaluator, given, deps);
}

/**
 * Refuses, when a task or an agent is set up, an evaluator that could not judge.
 * @throws FulgurError ERR_INVALID_REQUEST saying why
 */
export function checkEvaluator(evaluator: Evaluator): void {
  if ("answer_pattern" in evaluator && evaluator.answer_pattern !== undefined) compilePattern(evaluator.answer_pattern);
  if (evaluator.type === "json_schema") checkJsonSchema(evaluator.schema);
  if (evaluator.type === "worker") checkWorkerEvaluator(evaluator);
}
