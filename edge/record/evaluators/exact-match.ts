import { acceptedTexts, extractAnswer } from "./answer.ts";
import type { Evaluate } from "./contract.ts";

/** Right where the answer is what is expected (any of a list), apart from white space around it and, if wished, case. */
export const exactMatch: Evaluate<"exact_match"> = (evaluator, { result, expected }) => {
  const { answer_pattern: pattern, ignore_case: ignoreCase } = evaluator;
  const normalise = (text: string): string => {
    const trimmed = text.normalize("NFC").trim();
    return ignoreCase ? trimmed.toLowerCase() : trimmed;
  };
  const accepted = acceptedTexts(expected).map(normalise);
  const answer = normalise(extractAnswer(result, pattern) ?? "");
  if (answer === "") return { correctness: 0, format: 0 };
  return { correctness: accepted.includes(answer) ? 1 : 0, format: 1 };
};
