import { z } from "zod";
import { acceptedTexts, extractAnswer } from "./answer.ts";
import { cannotJudge, type EvaluateSlowly } from "./contract.ts";
import { askEvaluator } from "./remote.ts";

/** The service binding to edge/evaluators/sql. */
export const SQL_BINDING = "EVAL_SQL";

const answerSchema = z.looseObject({ ran: z.boolean(), equal: z.boolean() });

/**
 * Right where the answer's query gives the rows that the expected query gives, on a fresh database that `setup` fills;
 * well formed where it runs at all. A Worker of its own runs it: see edge/evaluators/sql/worker.ts.
 */
export const sqlMatch: EvaluateSlowly<"sql"> = async (evaluator, { result, expected, signal }, { service }) => {
  const [expectedQuery, ...more] = acceptedTexts(expected);
  if (expectedQuery === undefined || more.length > 0) throw cannotJudge("`expected` wants one SQL query");
  const send = service?.(SQL_BINDING);
  if (send === undefined)
    throw cannotJudge(`the edge has no service binding ${SQL_BINDING}; deploy edge/evaluators/sql`);
  const query = unfenced(extractAnswer(result, evaluator.answer_pattern) ?? "");
  if (query === "") return { correctness: 0, format: 0 };
  const body = { setup: evaluator.setup, query, expected: expectedQuery };
  const { ran, equal } = await askEvaluator(send, "https://evaluator/", { body, answer: answerSchema, signal });
  return { correctness: equal ? 1 : 0, format: ran ? 1 : 0 };
};

/** Models like to put queries into a fence. */
function unfenced(text: string): string {
  return (/^\s*```(?:sql)?\s*\n([\s\S]*?)\n\s*```\s*$/i.exec(text)?.[1] ?? text).trim();
}
