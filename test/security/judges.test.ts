import { describe, expect, test } from "vitest";
import type { Json } from "#shared/tables.ts";
import { evaluate } from "../../edge/record/evaluators/table.ts";

/** Judges of one tenant run where everybody's rollouts are finished: no schema and no text may keep that place busy. */

interface Judged {
  readonly schema: Readonly<Record<string, Json>>;
  readonly value: Json;
}

/** What comes of it, and whether it came soon. */
function judged({ schema, value }: Judged): unknown {
  const started = performance.now();
  const outcome = (() => {
    try {
      return evaluate({ type: "json_schema", schema }, { result: JSON.stringify(value), expected: null }).format;
    } catch (thrown) {
      return thrown;
    }
  })();
  expect(performance.now() - started).toBeLessThan(3000);
  return outcome;
}

/** Each leads twice to the next: 2ⁿ ways from one end to the other. */
function doubling(n: number): Judged["schema"] {
  const $defs: Record<string, Json> = { [`d${n}`]: true };
  for (let at = 0; at < n; at++) {
    const next = { $ref: `#/$defs/d${at + 1}` };
    $defs[`d${at}`] = { allOf: [next, next] };
  }
  return { $defs, $ref: "#/$defs/d0" };
}

describe("a JSON schema that judges", () => {
  const long = `${"a".repeat(40)}!`;

  test("is held to a number of visits", () => {
    expect(judged({ schema: doubling(10), value: 1 })).toBe(1);
    expect(judged({ schema: doubling(40), value: 1 })).toMatchObject({
      code: "ERR_INVALID_REQUEST",
      message: expect.stringContaining("more than 100000 times") as string,
    });
    // In arrays within arrays each level doubles by itself.
    const items = { items: { anyOf: [{ $ref: "#" }, { $ref: "#" }, { type: "string" }] }, type: "array" };
    const nested = JSON.parse(`${"[".repeat(40)}1${"]".repeat(40)}`) as Json;
    expect(judged({ schema: items, value: nested })).toMatchObject({ code: "ERR_INVALID_REQUEST" });
  });

  test("knows an address by a parser, and not by a pattern that backtracks", () => {
    const schema = { type: "string", format: "url" };
    expect(judged({ schema, value: "https://example.com/a?b" })).toBe(1);
    expect(judged({ schema, value: "no address" })).toBe(0);
    expect(judged({ schema, value: `http://${long} x` })).toBe(0);
  });

  test.each(["properties", "dependencies", "dependentSchemas", "$defs"])(
    "has its patterns matched in linear time under %s of whatever name",
    (keyword) => {
      for (const name of ["x", "const", "enum", "examples", "pattern"]) {
        const inner: Json =
          keyword === "properties" ? { pattern: "^(a+)+$" } : { properties: { y: { pattern: "^(a+)+$" } } };
        const schema: Judged["schema"] =
          keyword === "$defs"
            ? { $defs: { [name]: inner }, $ref: `#/$defs/${name}` }
            : { [keyword]: { [name]: inner } };
        expect(judged({ schema, value: { [name]: keyword === "properties" ? long : 1, y: long } })).toBe(0);
      }
    },
  );

  test("has no part that nobody looked at", () => {
    for (const keyword of ["examples", "default"]) {
      const schema = { properties: { x: { $ref: `#/${keyword}` } }, [keyword]: { pattern: "^(a+)+$" } };
      expect(judged({ schema, value: { x: long } })).toMatchObject({ code: "ERR_INVALID_REQUEST" });
    }
  });
});
