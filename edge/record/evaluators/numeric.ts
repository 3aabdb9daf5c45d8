import { acceptedTexts, extractAnswer } from "./answer.ts";
import { cannotJudge, type Evaluate } from "./contract.ts";

/**
 * Right where the answer's number is the expected one within a tolerance (the larger of the relative and the absolute).
 * Without a pattern the answer is the last number of the text, as solutions are written.
 */
export const numericMatch: Evaluate<"numeric"> = (evaluator, { result, expected }) => {
  const { answer_pattern: pattern, relative_tolerance: relative, absolute_tolerance: absolute } = evaluator;
  const accepted = acceptedTexts(expected).map((text) => {
    const value = lastNumber(text);
    if (value === undefined) throw cannotJudge(`a number is expected, ${JSON.stringify(text)} holds none`);
    return value;
  });
  const answer = lastNumber(extractAnswer(result, pattern) ?? "");
  if (answer === undefined) return { correctness: 0, format: 0 };
  const isRight = accepted.some((each) => Math.abs(answer - each) <= Math.max(absolute, relative * Math.abs(each)));
  return { correctness: isRight ? 1 : 0, format: 1 };
};

// A sign counts only where no word or digit stands before it: in "3-4" it joins two numbers.
const SIGN = "(?<![\\w.])[-+\u2212]";
const UNSIGNED = "(?:\\d{1,3}(?:,\\d{3})+(?!\\d)|\\d+)(?:\\.\\d+)?(?:[eE][-+]?\\d{1,3})?|\\.\\d+(?:[eE][-+]?\\d{1,3})?";
const NUMBER = new RegExp(
  `(?<sign>${SIGN})?[$€£]?(?<whole>${UNSIGNED})(?:\\s(?<part>\\d+)(?=\\s?/\\s?\\d))?(?:\\s?/\\s?(?<below>\\d+(?:\\.\\d+)?))?(?<percent>\\s?%)?`,
  "gu",
);

/** The last number of a text: `-1,234.5`, `2.5e3`, `$12`, `3/4`, `1 1/2`; `12%` is 0.12. Undefined where there is none. */
export function lastNumber(text: string): number | undefined {
  const groups = [...text.matchAll(NUMBER)].at(-1)?.groups;
  if (groups === undefined) return undefined;
  const { sign, whole = "", part, below, percent } = groups;
  const first = Number(whole.replaceAll(",", ""));
  const divisor = below === undefined ? 1 : Number(below);
  // `1 1/2` is one and a half, `3/4` three quarters.
  const size = part === undefined ? first / divisor : first + Number(part) / divisor;
  const value = (sign === undefined || sign === "+" ? size : -size) / (percent === undefined ? 1 : 100);
  return Number.isFinite(value) ? value : undefined;
}
