import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { evaluatorSchema } from "#shared/agent-settings.ts";
import type { Json } from "#shared/tables.ts";
import { lastNumber } from "../../../../edge/record/evaluators/numeric.ts";
import { checkEvaluator, evaluate, isSlow } from "../../../../edge/record/evaluators/table.ts";

function score(settings: object, result: string, expected: Json): [correctness: number, format: number] {
  const evaluator = evaluatorSchema.parse(settings);
  if (isSlow(evaluator)) throw new Error(`${evaluator.type} is asked, not computed`);
  const { correctness, format } = evaluate(evaluator, { result, expected });
  return [correctness, format];
}

describe("exact_match", () => {
  const exact = { type: "exact_match" };

  it("compares the whole text or the extracted answer, apart from white space around it", () => {
    expect(score(exact, " Paris\n", "Paris")).toEqual([1, 1]);
    expect(score(exact, "paris", "Paris")).toEqual([0, 1]);
    expect(score({ ...exact, ignore_case: true }, "paris", "Paris")).toEqual([1, 1]);
    expect(score({ ...exact, answer_pattern: "is (\\w+)\\." }, "It is Paris.", "Paris")).toEqual([1, 1]);
    expect(score({ ...exact, answer_pattern: "is (\\w+)\\." }, "Paris", "Paris")).toEqual([0, 0]);
    expect(score(exact, "  ", "Paris")).toEqual([0, 0]);
  });

  it("takes any of a list, numbers as they are written, and composed letters for their parts", () => {
    expect(score(exact, "Big Apple", ["New York", "Big Apple"])).toEqual([1, 1]);
    expect(score(exact, "12", 12)).toEqual([1, 1]);
    expect(score(exact, "Zu\u0308rich", "Z\u00fcrich")).toEqual([1, 1]);
  });

  it("cannot judge without something that is expected", () => {
    for (const expected of [null, {}, [], [{}]]) {
      expect(() => score(exact, "x", expected)).toThrow(/cannot judge/);
    }
  });
});

describe("token_f1", () => {
  const f1 = { type: "token_f1" };

  it("is SQuAD's: words in lower case, without punctuation and articles", () => {
    expect(score(f1, "The Eiffel Tower!", "eiffel tower")).toEqual([1, 1]);
    // {in, paris, france} against {paris}: precision 1/3, recall 1, F1 = 2·(1/3)/(4/3) = 1/2
    expect(score(f1, "in Paris, France", "Paris")[0]).toBeCloseTo(0.5, 12);
    // A word that is there twice counts twice at most where it is wanted twice: {b, b} against {b, c}: 2·1/4
    expect(score(f1, "b b", "b c")[0]).toBeCloseTo(0.5, 12);
    expect(score(f1, "London", "Paris")).toEqual([0, 1]);
    expect(score(f1, "", "Paris")).toEqual([0, 0]);
    expect(score(f1, "the", "a")).toEqual([1, 1]);
  });

  it("takes the best of a list, and is symmetric and within [0, 1]", () => {
    expect(score(f1, "in Paris", ["London", "Paris", "in Paris"])).toEqual([1, 1]);
    const text = fc.stringMatching(/^[a-d]{1,3}( [a-d]{1,3}){0,5}$/);
    fc.assert(
      fc.property(text, text, (a, b) => {
        const [ab] = score(f1, a, b);
        expect(ab).toBeCloseTo(score(f1, b, a)[0], 12);
        expect(ab).toBeGreaterThanOrEqual(0);
        expect(ab).toBeLessThanOrEqual(1);
      }),
    );
  });
});

describe("numeric", () => {
  const numeric = { type: "numeric" };

  it("reads numbers as people write them", () => {
    const cases: readonly (readonly [string, number | undefined])[] = [
      ["The total is 1,234.50 dollars.", 1234.5],
      ["$12", 12],
      ["-7", -7],
      ["\u22127", -7],
      ["5 - 3 = 2", 2],
      ["3-4", 4],
      ["12%", 0.12],
      ["12.5 %", 0.125],
      ["3/4", 0.75],
      ["1 1/2 cups", 1.5],
      ["-1 1/2", -1.5],
      ["2.5e3", 2500],
      [".5", 0.5],
      ["1/0", undefined],
      ["none", undefined],
      ["", undefined],
    ];
    expect(cases.map(([text]) => [text, lastNumber(text)])).toEqual(cases);
  });

  it("holds the last number, or the one a pattern extracts, to the tolerances", () => {
    expect(score(numeric, "3 + 4 = 7", "7")).toEqual([1, 1]);
    expect(score({ ...numeric, answer_pattern: "= (\\d+)" }, "= 7 (page 12)", 7)).toEqual([1, 1]);
    expect(score(numeric, "about 7.1", 7)).toEqual([0, 1]);
    expect(score({ ...numeric, relative_tolerance: 0.02 }, "about 7.1", 7)).toEqual([1, 1]);
    expect(score({ ...numeric, absolute_tolerance: 0.1 }, "0.05", 0)).toEqual([1, 1]);
    expect(score(numeric, "12%", "0.12")).toEqual([1, 1]);
    expect(score(numeric, "no idea", 7)).toEqual([0, 0]);
    expect(() => score(numeric, "7", "seven")).toThrow(/holds none/);
  });

  it("never throws and never gives what is not a number", () => {
    fc.assert(
      fc.property(fc.stringMatching(/^[0-9.,/+%$eE x-]{0,40}$/), (text) => {
        const value = lastNumber(text);
        expect(value === undefined || Number.isFinite(value)).toBe(true);
      }),
    );
  });
});

describe("json_schema", () => {
  const schema = {
    type: "object",
    required: ["city"],
    additionalProperties: false,
    properties: { city: { type: "string", pattern: "^[A-Z]", minLength: 2 }, pattern: { const: { pattern: "x" } } },
  };
  const judge = { type: "json_schema", schema };

  it("is well formed where the whole text is JSON that the schema takes", () => {
    expect(score(judge, '{"city": "Paris"}', null)).toEqual([1, 1]);
    expect(score(judge, '{"city": "Paris", "pattern": {"pattern": "x"}}', null)).toEqual([1, 1]);
    expect(score(judge, '{"city": "Paris", "pattern": "x"}', null)).toEqual([0, 0]);
    expect(score(judge, '{"city": "paris"}', null)).toEqual([0, 0]);
    expect(score(judge, '{"city": "P"}', null)).toEqual([0, 0]);
    expect(score(judge, '{"town": "Paris"}', null)).toEqual([0, 0]);
    expect(score(judge, 'Here: {"city": "Paris"}', null)).toEqual([0, 0]);
  });

  it("is right where it also equals what is expected, in any order of keys", () => {
    const open = { type: "json_schema", schema: { type: "object" } };
    expect(score(open, '{"b": [1, 2], "a": 1}', { a: 1, b: [1, 2] })).toEqual([1, 1]);
    expect(score(open, '{"a": 1}', { a: 2 })).toEqual([0, 1]);
  });

  it("matches a tenant's patterns in linear time, and in no schema of another", () => {
    const slow = { type: "json_schema", schema: { type: "string", pattern: "^(a+)+$" } };
    const startedAt = performance.now();
    expect(score(slow, JSON.stringify(`${"a".repeat(10_000)}!`), null)).toEqual([0, 0]);
    // A native RegExp would need 2^10000 steps.
    expect(performance.now() - startedAt).toBeLessThan(5000);
    const foreign = { type: "json_schema", schema: { format: "pattern:^(a+)+$" } };
    expect(score(foreign, '"b"', null)).toEqual([1, 1]);
  });

  it("refuses schemas that could not judge", () => {
    const refused = (bad: object): (() => void) => {
      return () => checkEvaluator(evaluatorSchema.parse({ type: "json_schema", schema: bad }));
    };
    expect(refused({ pattern: "(?=x)" })).toThrow(/look-around/);
    expect(refused({ properties: { a: { patternProperties: { x: {} } } } })).toThrow(/patternProperties/);
    expect(refused({ properties: { a: { $ref: "#/$defs/none" } } })).toThrow(/refers to "#\/\$defs\/none"/);
    expect(refused({ $defs: { a: {} }, items: { $ref: "#/$defs/a" } })).not.toThrow();
    expect(refused(schema)).not.toThrow();
    expect(() => score({ type: "json_schema", schema: { $ref: "#" } }, "1", null)).toThrow(/without end/);
    expect(() => score({ type: "json_schema", schema: { $ref: "#/none" } }, "1", null)).toThrow(/cannot judge/);
  });
});

describe("checkEvaluator", () => {
  it("refuses patterns and ways that cannot be used", () => {
    const check = (settings: object) => () => checkEvaluator(evaluatorSchema.parse(settings));
    expect(check({ type: "exact_match", answer_pattern: "(" })).toThrow(/cannot be used/);
    expect(check({ type: "worker" })).toThrow(/binding or a url/);
    expect(check({ type: "worker", url: "http://example.com/" })).toThrow(/https/);
    expect(check({ type: "worker", url: "http://127.0.0.1:1/" })).not.toThrow();
    expect(check({ type: "worker", binding: "EVAL" })).not.toThrow();
    expect(check({ type: "llm_judge", model: "policy:flight", prompt: "Judge." })).not.toThrow();
  });
});
