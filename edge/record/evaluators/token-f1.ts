import { acceptedTexts, extractAnswer } from "./answer.ts";
import type { Evaluate } from "./contract.ts";

/**
 * The F1 of the answer's words against what is expected, the best of a list.
 * @see Rajpurkar et al. 2016, arXiv:1606.05250: SQuAD's own normalisation and measure
 */
export const tokenF1: Evaluate<"token_f1"> = ({ answer_pattern: pattern }, { result, expected }) => {
  const accepted = acceptedTexts(expected);
  const answer = extractAnswer(result, pattern)?.trim() ?? "";
  if (answer === "") return { correctness: 0, format: 0 };
  return { correctness: Math.max(...accepted.map((each) => f1(words(answer), words(each)))), format: 1 };
};

/** Lower case, without punctuation and articles. */
function words(text: string): string[] {
  return text
    .toLowerCase()
    .replaceAll(/[\p{P}\p{S}]/gu, "")
    .replaceAll(/\b(a|an|the)\b/g, " ")
    .split(/\s+/)
    .filter((word) => word !== "");
}

function f1(answer: readonly string[], expected: readonly string[]): number {
  // Where one has no words at all, SQuAD asks whether both have none.
  if (answer.length === 0 || expected.length === 0) return answer.length === expected.length ? 1 : 0;
  const left = new Map<string, number>();
  for (const word of expected) left.set(word, (left.get(word) ?? 0) + 1);
  let common = 0;
  for (const word of answer) {
    const count = left.get(word) ?? 0;
    if (count === 0) continue;
    left.set(word, count - 1);
    common += 1;
  }
  return (2 * common) / (answer.length + expected.length);
}
