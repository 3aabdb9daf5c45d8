import { describe, expect, test } from "vitest";
import { Grammar } from "../../../trainer/inference/grammar.ts";
import { formGrammar } from "../../../trainer/inference/json-schema-grammar.ts";

function accepts(schema: unknown, text: string): boolean {
  let state = new Grammar(formGrammar({ type: "schema", schema })).start();
  for (const byte of Buffer.from(text)) state = state?.next(byte) ?? null;
  return state?.isAccepting ?? false;
}

const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, email: { type: ["string", "null"] } },
  required: ["name", "email"],
  additionalProperties: false,
};
const tree = {
  $defs: {
    node: {
      type: "object",
      properties: { value: { type: "number" }, children: { type: "array", items: { $ref: "#/$defs/node" } } },
      required: ["value", "children"],
    },
  },
  $ref: "#/$defs/node",
};

describe("a schema's grammar has", () => {
  test.each<[string, unknown, readonly string[], readonly string[]]>([
    [
      "properties in order, optional ones left out or not",
      person,
      ['{"name":"A","email":null}', '{"name": "A", "age": 3, "email": "a@b"}', '{\n  "name": "A",\n  "email": null\n}'],
      [
        '{"email":null,"name":"A"}',
        '{"name":"A"}',
        '{"name":"A","email":null,"x":1}',
        '{"name":"A",,"email":null}',
        "{}",
      ],
    ],
    [
      "all properties left out where none is required, and never a comma too many",
      { type: "object", properties: { a: { const: 1 }, b: { const: 2 } }, additionalProperties: false },
      ["{}", '{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}'],
      ['{"a": 1, }', '{, "b": 2}', '{"b": 2, "a": 1}'],
    ],
    ["enums of the type that is named", { type: ["string", "null"], enum: ["a", 1, null] }, ['"a"', "null"], ["1"]],
    ["enums and constants as JSON", { enum: ["a", 2, null, "é\n"] }, ['"a"', "2", "null", '"é\\n"'], ["a", '"b"', "3"]],
    ["integers", { type: "integer" }, ["0", "-1", "120", "999999999999999"], ["01", "-0", "1.5", "1e3", "+1", ""]],
    ["numbers", { type: "number" }, ["0", "-0.5", "12e-3", "3.25E+10"], [".5", "1.", "01", "1e", "1e999", "NaN"]],
    ["integers of a range", { type: "integer", minimum: 0, maximum: 10 }, ["0", "7", "10"], ["11", "-1", "100"]],
    ["positive integers", { type: "integer", exclusiveMinimum: 0 }, ["1", "907"], ["0", "-3"]],
    [
      "integers that are exact, as zod bounds them",
      { type: "integer", minimum: -9007199254740991, maximum: 9007199254740991 },
      ["-5", "0", "5"],
      ["5.0"],
    ],
    [
      "strings of valid UTF-8 and escapes",
      { type: "string" },
      ['""', '"a b"', '"é 漢 😀"', '"\\n\\"\\u00e9"'],
      ['"', '"a"b"', '"\n"', '"\\x"', '"\\ud83d"', "'a'"],
    ],
    [
      "strings of a length, in characters",
      { type: "string", minLength: 2, maxLength: 3 },
      ['"éé"', '"a\\nb"'],
      ['"é"', '"abcd"'],
    ],
    [
      "arrays of a length",
      { type: "array", items: { type: "boolean" }, minItems: 1, maxItems: 2 },
      ["[true]", "[true, false]", "[\n  true,\n  false\n]"],
      ["[]", "[true,true,true]", "[1]", "[true,]"],
    ],
    [
      "arrays of any length",
      { type: "array", items: { type: "null" } },
      ["[]", "[null]", "[null,null,null]"],
      ["[null"],
    ],
    ["one of several schemas", { anyOf: [{ type: "null" }, person] }, ["null", '{"name":"","email":""}'], ["1"]],
    [
      "schemas that refer to themselves",
      tree,
      ['{"value":1,"children":[{"value":2,"children":[]}]}'],
      ['{"value":1}', '{"value":1,"children":[1]}'],
    ],
    [
      "any value where nothing is said",
      {},
      ["1", '{"a":[1,{"b":null}]}', "[]", '"x"', "true"],
      ["", "undefined", "{a:1}", "[1,]"],
    ],
    [
      "objects of any keys",
      { type: "object", additionalProperties: { type: "integer" } },
      ["{}", '{"a":1,"b":2}'],
      ['{"a":"b"}'],
    ],
  ])("%s", (_, schema, good, bad) => {
    for (const text of good) expect([text, accepts(schema, text)]).toEqual([text, true]);
    for (const text of bad) expect([text, accepts(schema, text)]).toEqual([text, false]);
  });
});

test.each([
  [{ type: "string", pattern: "^a" }, "pattern"],
  [{ type: "object", properties: { a: { type: "wat" } } }, "type"],
  [{ type: "object", properties: { a: { $ref: "#/$defs/none" } } }, "leads nowhere"],
  [{ type: "object", required: ["a"] }, '"a" is required'],
  [{ type: "number", minimum: 3 }, "minimum of 0"],
  [{ type: "integer", minimum: 3, maximum: 2 }, "at least 3 and at most 2"],
  [{ allOf: [{}, {}] }, "allOf"],
  [{ anyOf: [{ type: "string" }], minLength: 2 }, "minLength beside anyOf"],
  [{ type: "string", anyOf: [{ minLength: 2 }] }, "type beside anyOf"],
  [{ enum: ["a"], const: "a" }, "enum beside const"],
  [{ type: "integer", enum: ["a", 1.5] }, "no value of enum"],
  [{ type: "object", properties: { a: { type: "string", minLength: 4096 } }, required: ["b"] }, '"b" is required'],
  [{ anyOf: Array.from({ length: 40 }, () => ({ type: "string", maxLength: 4096 })) }, "more than 100000"],
  [false, "schema"],
])("%j is refused by name", (schema, word) => {
  expect(() => formGrammar({ type: "schema", schema })).toThrow(
    expect.objectContaining({ code: "ERR_INVALID_REQUEST", message: expect.stringContaining(word) }),
  );
});

test("a schema nested without end is refused and does not exhaust the stack, by references neither", () => {
  let schema: unknown = { type: "null" };
  for (let i = 0; i < 50_000; i++) schema = { anyOf: [schema] };
  expect(() => formGrammar({ type: "schema", schema })).toThrow(/nested deeper/);
  const $defs = Object.fromEntries(
    Array.from({ length: 20_000 }, (_, i) => [`d${i}`, { type: "array", items: { $ref: `#/$defs/d${i + 1}` } }]),
  );
  expect(() => formGrammar({ type: "schema", schema: { $defs, $ref: "#/$defs/d0" } })).toThrow(/nested deeper/);
});
