import { describe, expect, it } from "vitest";
import { z } from "zod";
import { UnprocessableError } from "../../../../edge/routes/agl/errors.ts";
import { laxBoolean, laxInt, parseBody, parseQuery } from "../../../../edge/routes/agl/parse.ts";

const post = (text: string): Request => new Request("http://edge/", { method: "POST", body: text });

async function issuesOf(work: () => unknown): Promise<unknown> {
  try {
    await work();
  } catch (thrown) {
    if (thrown instanceof UnprocessableError) return thrown.issues.map(({ type, loc }) => [type, loc.join(".")]);
    throw thrown;
  }
  throw new Error("it was accepted");
}

describe("parseBody", () => {
  it.each([
    [laxInt, "7", 7],
    [laxInt, '" 7 "', 7],
    [laxInt, '"7.0"', 7],
    [laxInt, "true", 1],
    [laxBoolean, '"YES"', true],
    [laxBoolean, "0", false],
    [laxBoolean, '"off"', false],
  ])("reads numbers and booleans from their usual texts", async (schema, text, value) => {
    expect(await parseBody<z.ZodType>(post(text), schema)).toBe(value);
  });

  it.each([
    [laxInt, "1.5", "int_from_float"],
    [laxInt, '"x"', "int_parsing"],
    [laxInt, "[]", "int_type"],
    [laxInt, "1e300", "int_from_float"],
    [laxBoolean, "2", "bool_parsing"],
    [laxBoolean, '"constructor"', "bool_parsing"],
    [laxBoolean, "null", "bool_type"],
    [z.string(), "1", "string_type"],
    [z.array(z.string()), "{}", "list_type"],
    [z.object({}), "[]", "model_attributes_type"],
    [z.record(z.string(), z.string()), "1", "dict_type"],
    [z.enum(["a"]), '"b"', "enum"],
    [z.string().max(1), '"bb"', "value_error"],
  ])("names what does not fit", async (schema, text, type) => {
    expect(await issuesOf(() => parseBody<z.ZodType>(post(text), schema))).toEqual([[type, "body"]]);
  });

  it("says where, once for each field", async () => {
    const schema = z.strictObject({ a: z.array(z.object({ b: z.string() })), c: z.string() });
    expect(await issuesOf(() => parseBody(post('{"a":[{"b":"x"},{}],"x":1,"y":2}'), schema))).toEqual([
      ["missing", "body.a.1.b"],
      ["missing", "body.c"],
      ["extra_forbidden", "body.x"],
      ["extra_forbidden", "body.y"],
    ]);
  });

  it("tells an empty body from one that is no JSON", async () => {
    expect(await issuesOf(() => parseBody(post(""), z.object({})))).toEqual([["missing", "body"]]);
    expect(await issuesOf(() => parseBody(post("{"), z.object({})))).toEqual([["json_invalid", "body"]]);
  });
});

describe("parseQuery", () => {
  const schema = z.object({ many: z.array(z.string()), one: laxInt.default(3) });

  it("gathers what may be repeated, and takes the first of what may not", () => {
    expect(parseQuery("http://edge/?many=a&one=1&many=b&one=2", schema, ["many"])).toEqual({
      many: ["a", "b"],
      one: 1,
    });
    expect(parseQuery("http://edge/?many=a", schema, ["many"])).toEqual({ many: ["a"], one: 3 });
  });

  it("misses what is not there", async () => {
    expect(await issuesOf(() => parseQuery("http://edge/?one=1", schema, ["many"]))).toEqual([
      ["missing", "query.many"],
    ]);
  });
});
