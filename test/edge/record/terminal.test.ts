import { describe, expect, it } from "vitest";
import { checkJudge, judgeResult, MAX_JUDGED_CHARACTERS } from "../../../edge/record/terminal.ts";
import { makeTask } from "../../../edge/agents/flight/tasks.ts";

const JUDGE = {
  answer_pattern: '"([A-Z]{3}[0-9]{2})"',
  format_pattern: '^Booked "[A-Z]{3}[0-9]{2}"\\.$',
  expected: "SAS12",
};

describe("judgeResult", () => {
  it("gives 0.9 for the right answer and 0.1 for its form", () => {
    const cases: readonly (readonly [string | null, number, number, number])[] = [
      ['Booked "SAS12".', 1, 1, 1],
      ['Booked "KLM12".', 0, 1, 0.1],
      ['I took "SAS12" for you', 1, 0, 0.9],
      ["Booked SAS12.", 0, 0, 0],
      ['Booked "SAS12". ', 1, 0, 0.9],
      ["", 0, 0, 0],
      [null, 0, 0, 0],
    ];
    for (const [result, correctness, format, terminal] of cases) {
      expect(judgeResult(JUDGE, result)).toEqual({ correctness, format, terminal });
    }
  });

  it("takes the first answer that the result gives", () => {
    expect(judgeResult(JUDGE, '"KLM34", or rather "SAS12"').correctness).toBe(0);
  });

  it("matches the format against the whole text, with or without anchors", () => {
    expect(judgeResult({ ...JUDGE, format_pattern: "a|ab" }, "ab").format).toBe(1);
    expect(judgeResult({ ...JUDGE, format_pattern: "a|ab" }, "abc").format).toBe(0);
  });

  it("judges a very long result by its end and never as well formed", () => {
    const long = "x".repeat(MAX_JUDGED_CHARACTERS);
    const verdict = judgeResult({ ...JUDGE, format_pattern: ".*" }, `"KLM34" ${long} "SAS12"`);
    expect(verdict).toEqual({ correctness: 1, format: 0, terminal: 0.9 });
  });

  it("gives the flight tasks' own right answers the whole reward", () => {
    for (let index = 0; index < 20; index++) {
      const { judge } = makeTask("val", index);
      expect(judgeResult(judge, `Booked "${judge.expected}".`).terminal).toBe(1);
    }
  });
});

describe("checkJudge", () => {
  it("refuses patterns that cannot be used, and an answer pattern without a group", () => {
    expect(() => checkJudge(JUDGE)).not.toThrow();
    expect(() => checkJudge({ ...JUDGE, answer_pattern: "[A-Z]+" })).toThrow(/wants a group around the answer/);
    expect(() => checkJudge({ ...JUDGE, answer_pattern: "(" })).toThrow(/cannot be used/);
    expect(() => checkJudge({ ...JUDGE, format_pattern: "(?=x)" })).toThrow(/look-around/);
  });
});
