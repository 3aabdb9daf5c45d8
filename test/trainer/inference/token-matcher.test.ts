import { expect, test } from "vitest";
import * as z from "zod";
import { FormMatchers } from "../../../trainer/inference/form-matchers.ts";
import type { AnswerForm } from "../../../trainer/inference/json-schema-grammar.ts";
import { vocabularyOf } from "../../../trainer/inference/token-matcher.ts";
import { makeTokenizer, type Tokenizer } from "../../../trainer/model/tokenizer.ts";
import { randomNumbers, tinyTokenizer } from "./tiny-model.ts";

const tokenizer = makeTokenizer(tinyTokenizer(), {});
const END = 264;

/** Draws allowed tokens at random until the text ends; text is ended early where it may be. */
function write(of: Tokenizer, form: AnswerForm, random: () => number): string {
  const matcher = new FormMatchers(vocabularyOf(of)).matcher(form, [END]);
  const ids: number[] = [];
  while (ids.length < 2000) {
    const allowed = matcher.allowed();
    const id = allowed.includes(END) ? END : allowed[Math.floor(Math.abs(random()) * 1e6) % allowed.length];
    if (id === undefined) throw new Error("nothing may follow");
    if (id === END) return of.decode(ids);
    matcher.accept(id);
    ids.push(id);
  }
  throw new Error("it does not end");
}

test("what may follow is each token whose bytes the grammar can take, and the end where the text is whole", () => {
  const form: AnswerForm = { type: "schema", schema: { enum: ["too", "to", "at"] } };
  const matcher = new FormMatchers(vocabularyOf(tokenizer)).matcher(form, [END]);
  const textOf = (ids: readonly number[]): string[] => ids.map((id) => tokenizer.decode([id])).toSorted();
  expect(textOf(matcher.allowed())).toEqual(['"']);
  matcher.accept(tokenizer.encode('"')[0] ?? -1);
  expect(textOf(matcher.allowed())).toEqual(["a", "t", "to", "too"]);
  matcher.accept(tokenizer.encode("to")[0] ?? -1);
  expect(textOf(matcher.allowed())).toEqual(['"', "o"]);
  matcher.accept(tokenizer.encode('"')[0] ?? -1);
  expect(matcher.allowed()).toEqual([END]);
});

test("special tokens are no text, though their letters are", () => {
  const form: AnswerForm = { type: "schema", schema: { type: "string" } };
  const matcher = new FormMatchers(vocabularyOf(tokenizer)).matcher(form, [END]);
  matcher.accept(tokenizer.encode('"')[0] ?? -1);
  const allowed = matcher.allowed();
  for (const id of tokenizer.specialIds) expect(allowed).not.toContain(id);
  // All bytes that begin a character, but for quotes, backslashes and control characters; and the merges.
  const single = Array.from({ length: 256 }, (_, byte) => byte).filter(
    (byte) => (byte >= 0x20 && byte < 0x80) || (byte >= 0xc2 && byte <= 0xf4),
  );
  expect(allowed).toHaveLength(single.length + 6);
});

test.each([
  {
    type: "object",
    properties: {
      name: { type: "string", maxLength: 5 },
      kind: { enum: ["tool", "an er"] },
      size: { type: "integer", minimum: 0, maximum: 300 },
      parts: { type: "array", items: { anyOf: [{ type: "boolean" }, { type: "number" }] }, maxItems: 3 },
      note: { anyOf: [{ type: "string", maxLength: 3 }, { type: "null" }] },
    },
    required: ["name", "kind", "size", "parts"],
    additionalProperties: false,
  },
  { type: "array", items: { type: "string", minLength: 1, maxLength: 2 }, minItems: 1, maxItems: 4 },
  { type: "integer", minimum: -3, maximum: 12 },
] satisfies Parameters<typeof z.fromJSONSchema>[0][])(
  "any tokens that are allowed make an answer that parses and fits (%#)",
  (schema) => {
    const fits = z.fromJSONSchema(schema);
    const random = randomNumbers(7);
    const texts = Array.from({ length: 60 }, () => write(tokenizer, { type: "schema", schema }, random));
    for (const text of texts) expect([text, fits.safeParse(JSON.parse(text)).success]).toEqual([text, true]);
    expect(new Set(texts).size).toBeGreaterThan(5);
  },
);

test("a form that no token can begin is refused", () => {
  const few: Tokenizer = { ...tokenizer, vocab: 3, specialIds: new Set(), bytesOf: (id) => Uint8Array.of(0x61 + id) };
  const form: AnswerForm = { type: "schema", schema: { type: "object" } };
  expect(() => new FormMatchers(vocabularyOf(few)).matcher(form, [])).toThrow(/no text that this model can write/);
});

test("a form too deep for the stack is refused", () => {
  let value: unknown = 1;
  for (let i = 0; i < 50_000; i++) value = [value];
  const forms = new FormMatchers(vocabularyOf(tokenizer));
  expect(() => forms.matcher({ type: "schema", schema: { const: value } }, [])).toThrow(
    expect.objectContaining({ code: "ERR_INVALID_REQUEST", message: expect.stringContaining("nested too deeply") }),
  );
});
