/**
 * JSON schemas as grammars: every text of the grammar is valid by the schema. What a grammar cannot say is refused by
 * name and never ignored; where a schema leaves open how JSON is written, the usual ways are allowed.
 */

import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";
import { between, bytes, choice, type GrammarNode, literal, optional, repeat, sequence } from "./grammar.ts";

/** What an answer must look like, as plain data. */
export type AnswerForm =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "schema"; readonly schema: unknown }
  | { readonly type: "sequence"; readonly parts: readonly AnswerForm[] }
  | { readonly type: "choice"; readonly options: readonly AnswerForm[] };

/** Any JSON object. */
export const ANY_OBJECT: AnswerForm = { type: "schema", schema: { type: "object" } };

/**
 * The grammar of an answer's form.
 * @throws FulgurError ERR_INVALID_REQUEST that names what of a schema is not supported
 */
export function formGrammar(form: AnswerForm): GrammarNode {
  switch (form.type) {
    case "text":
      return literal(form.text);
    case "schema":
      return new SchemaCompiler(form.schema).compile(form.schema, "#");
    case "sequence":
      return sequence(...form.parts.map(formGrammar));
    case "choice":
      return choice(...form.options.map(formGrammar));
  }
}

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"] as const;
type TypeName = (typeof TYPES)[number];

const count = z.int().min(0).max(4096);
const schemaObject = z.strictObject({
  type: z.union([z.enum(TYPES), z.array(z.enum(TYPES)).min(1)]).optional(),
  enum: z.array(z.json()).min(1).optional(),
  const: z.json().optional(),
  anyOf: z.array(z.unknown()).min(1).optional(),
  oneOf: z.array(z.unknown()).min(1).optional(),
  allOf: z.tuple([z.unknown()]).optional(),
  $ref: z.string().optional(),
  properties: z.record(z.string(), z.unknown()).optional(),
  required: z.array(z.string()).optional(),
  additionalProperties: z.unknown().optional(),
  items: z.unknown().optional(),
  minItems: count.optional(),
  maxItems: count.optional(),
  minLength: count.optional(),
  maxLength: count.optional(),
  minimum: z.number().optional(),
  maximum: z.number().optional(),
  exclusiveMinimum: z.number().optional(),
  exclusiveMaximum: z.number().optional(),
  // What says nothing about which values are valid.
  $schema: z.unknown().optional(),
  $id: z.unknown().optional(),
  $defs: z.unknown().optional(),
  definitions: z.unknown().optional(),
  $comment: z.unknown().optional(),
  title: z.unknown().optional(),
  description: z.unknown().optional(),
  default: z.unknown().optional(),
  examples: z.unknown().optional(),
  deprecated: z.unknown().optional(),
  readOnly: z.unknown().optional(),
  writeOnly: z.unknown().optional(),
  format: z.unknown().optional(),
});
type Schema = z.infer<typeof schemaObject>;

/** Integers beyond 15 digits are not exact in most languages. */
const INTEGER_DIGITS = 15;
const LARGEST_INTEGER = 10 ** INTEGER_DIGITS - 1;
const MAX_DEPTH = 200;
/** Ranges of up to so many integers are written out. */
const MAX_LISTED = 1024;
/** Repetitions are written out too: a few bytes of a schema must not take all the memory. */
const MAX_PARTS = 100_000;
/** What a value may be is said by one of these, or by the words about its type. */
const WHOLE_KEYS = ["$ref", "const", "enum", "anyOf", "oneOf", "allOf"] as const;
/** Words about a type; beside those of WHOLE_KEYS they would have to hold as well, which a grammar cannot say. */
const TYPE_KEYS = [
  ...["properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength", "maxLength"],
  ...["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
];

class SchemaCompiler {
  readonly #root: unknown;
  /** By pointer: the target of a reference, which may be reached again on the way to itself. */
  readonly #targets = new Map<string, GrammarNode>();
  #depth = 0;
  #parts = 0;

  constructor(root: unknown) {
    this.#root = root;
  }

  /** @param path where the schema is, for messages */
  compile(given: unknown, path: string): GrammarNode {
    if (given === undefined || given === true) return anyValue;
    if (this.#depth >= MAX_DEPTH) throw refusal(path.slice(0, 100), `is nested deeper than ${MAX_DEPTH}`);
    this.#depth++;
    const node = this.#compile(given, path);
    this.#depth--;
    return node;
  }

  #compile(given: unknown, path: string): GrammarNode {
    const parsed = schemaObject.safeParse(given);
    if (!parsed.success) {
      const [issue] = parsed.error.issues;
      const keys = issue?.code === "unrecognized_keys" ? issue.keys.join(", ") : issue?.path.join(".");
      throw refusal(path, `${keys ?? ""} is not supported or not valid (${issue?.message ?? ""})`);
    }
    const schema = parsed.data;
    const [whole, ...others] = WHOLE_KEYS.filter((key) => schema[key] !== undefined);
    if (whole !== undefined) {
      const beside = others[0] ?? TYPE_KEYS.find((key) => key in schema);
      if (beside !== undefined) throw refusal(path, `${beside} beside ${whole} is not supported`);
    }
    if (schema.const !== undefined || schema.enum !== undefined) {
      const values = (schema.enum ?? [schema.const]).filter((value) => isOfType(value, schema.type));
      if (values.length === 0) throw refusal(path, `no value of ${whole} is of its type`);
      return choice(...values.map((value) => literal(JSON.stringify(value))));
    }
    if (whole !== undefined && schema.type !== undefined) {
      throw refusal(path, `type beside ${whole} is not supported; give it to each of them`);
    }
    if (schema.$ref !== undefined) return this.#reference(schema.$ref, path);
    // A value may fit several of oneOf, which a schema that means one at a time does not let happen.
    const alternatives = schema.anyOf ?? schema.oneOf ?? schema.allOf;
    if (alternatives !== undefined) return choice(...alternatives.map((each, i) => this.compile(each, `${path}/${i}`)));
    const types = schema.type ?? impliedTypes(schema);
    return choice(...(Array.isArray(types) ? types : [types]).map((type) => this.#ofType(type, schema, path)));
  }

  #ofType(type: TypeName, schema: Schema, path: string): GrammarNode {
    switch (type) {
      case "null":
        return literal("null");
      case "boolean":
        return choice(literal("true"), literal("false"));
      case "string":
        return sequence(quote, this.#between(character, schema.minLength ?? 0, schema.maxLength ?? Infinity), quote);
      case "integer": {
        const integers = integerGrammar(schema, path);
        if (integers.type === "choice") this.#take(integers.options.length);
        return integers;
      }
      case "number":
        return numberGrammar(schema, path);
      case "array":
        return this.#array(schema, path);
      case "object":
        return this.#object(schema, path);
    }
  }

  #array({ items, minItems = 0, maxItems = Infinity }: Schema, path: string): GrammarNode {
    const item = this.compile(items, `${path}/items`);
    if (maxItems === 0) return sequence(literal("["), space, literal("]"));
    const more = this.#between(sequence(comma, item), Math.max(0, minItems - 1), maxItems - 1);
    const some = sequence(item, more, space);
    return sequence(literal("["), space, minItems > 0 ? some : optional(some), literal("]"));
  }

  /** Properties in the order of the schema; those that are not required may be left out. */
  #object({ properties = {}, required = [], additionalProperties }: Schema, path: string): GrammarNode {
    const names = Object.keys(properties);
    const unknown = required.find((name) => !names.includes(name));
    if (unknown !== undefined) throw refusal(path, `"${unknown}" is required but is none of properties`);
    if (names.length === 0) {
      if (additionalProperties === false) return sequence(literal("{"), space, literal("}"));
      const value = this.compile(additionalProperties, `${path}/additionalProperties`);
      return objectOf(sequence(quote, repeat(character), quote, colon, value));
    }
    // Further properties are left out also where they are allowed: one of them might repeat a name of the schema.
    // From the last property back: what may follow when some was written before, and when none was.
    let afterSome = sequence();
    let afterNone = sequence();
    for (const name of names.toReversed()) {
      const value = this.compile(properties[name], `${path}/properties/${name}`);
      const member = sequence(literal(JSON.stringify(name)), colon, value, afterSome);
      const [next, first] = [sequence(comma, member), member];
      const isRequired = required.includes(name);
      afterNone = isRequired ? first : choice(first, afterNone);
      afterSome = isRequired ? next : choice(next, afterSome);
    }
    return sequence(literal("{"), space, afterNone, space, literal("}"));
  }

  #between(item: GrammarNode, least: number, most: number): GrammarNode {
    this.#take(most === Infinity ? least : Math.max(least, most));
    return between(item, least, most);
  }

  /** @throws FulgurError ERR_INVALID_REQUEST when the grammar would become too large */
  #take(parts: number): void {
    this.#parts += parts;
    if (this.#parts > MAX_PARTS) {
      throw refusal("#", `its lengths and ranges add up to more than ${MAX_PARTS}; lower them`);
    }
  }

  #reference(pointer: string, path: string): GrammarNode {
    const known = this.#targets.get(pointer);
    if (known !== undefined) return known;
    let target: unknown = this.#root;
    const steps = pointer.startsWith("#") ? pointer.slice(1).split("/").slice(1) : [null];
    for (const step of steps) {
      const key = step === null ? null : decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");
      const isThere = typeof target === "object" && target !== null && key !== null && Object.hasOwn(target, key);
      if (!isThere) throw refusal(path, `$ref "${pointer}" leads nowhere in this schema`);
      target = Object.entries(target ?? {}).find(([name]) => name === key)?.[1];
    }
    let compiled: GrammarNode | undefined;
    const reference: GrammarNode = {
      type: "reference",
      // Set when it is reached for the first time, long after this function has returned.
      target: () => compiled ?? sequence(),
    };
    this.#targets.set(pointer, reference);
    compiled = this.compile(target, pointer);
    return reference;
  }
}

function isOfType(value: unknown, type: Schema["type"]): boolean {
  if (type === undefined) return true;
  const own = value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
  return [type].flat().some((each) => each === own || (each === "integer" && Number.isInteger(value)));
}

/** The types that a schema without `type` is about by its other words; any when there are none. */
function impliedTypes(schema: Schema): readonly TypeName[] {
  const has = (...keys: (keyof Schema)[]): boolean => keys.some((key) => schema[key] !== undefined);
  if (has("properties", "required", "additionalProperties")) return ["object"];
  if (has("items", "minItems", "maxItems")) return ["array"];
  if (has("minLength", "maxLength")) return ["string"];
  if (has("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")) return ["number"];
  return TYPES;
}

function integerGrammar(schema: Schema, path: string): GrammarNode {
  const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity, exclusiveMaximum = Infinity } = schema;
  const least = Math.max(Math.ceil(minimum), Math.floor(exclusiveMinimum) + 1);
  const most = Math.min(Math.floor(maximum), Math.ceil(exclusiveMaximum) - 1);
  const magnitude = sequence(bytes([0x31, 0x39]), between(digit, 0, INTEGER_DIGITS - 1));
  const isUnbounded = most >= LARGEST_INTEGER;
  if (isUnbounded && least <= -LARGEST_INTEGER)
    return choice(literal("0"), sequence(optional(literal("-")), magnitude));
  if (isUnbounded && least === 0) return choice(literal("0"), magnitude);
  if (isUnbounded && least === 1) return magnitude;
  if (least > most) throw refusal(path, `no integer is at least ${least} and at most ${most}`);
  if (most - least >= MAX_LISTED) {
    throw refusal(path, `bounds of an integer are supported from 0, from 1 and over at most ${MAX_LISTED} values`);
  }
  return choice(...Array.from({ length: most - least + 1 }, (_, i) => literal(`${least + i}`)));
}

function numberGrammar(schema: Schema, path: string): GrammarNode {
  const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum, exclusiveMaximum } = schema;
  const isSupported = maximum === Infinity && (minimum === 0 || minimum === -Infinity);
  if (!isSupported || exclusiveMinimum !== undefined || exclusiveMaximum !== undefined) {
    throw refusal(path, "bounds of a number other than a minimum of 0 are not supported");
  }
  return minimum === 0 ? magnitudeGrammar : sequence(optional(literal("-")), magnitudeGrammar);
}

const quote = literal('"');
const digit = bytes([0x30, 0x39]);
/** One space, or a new line and its indent: bounded, since a model may never stop writing white space. */
const space = optional(choice(literal(" "), sequence(literal("\n"), between(literal(" "), 0, 32))));
const comma = sequence(literal(","), space);
const colon = sequence(literal(":"), optional(literal(" ")));
const continuation = bytes([0x80, 0xbf]);
const hex = bytes([0x30, 0x39], [0x41, 0x46], [0x61, 0x66]);
/** One character of a string, as valid UTF-8 or an escape; escaped surrogates are left out, since they come in pairs. */
const character = choice(
  bytes([0x20, 0x21], [0x23, 0x5b], [0x5d, 0x7f]),
  sequence(bytes([0xc2, 0xdf]), continuation),
  sequence(bytes([0xe0, 0xe0]), bytes([0xa0, 0xbf]), continuation),
  sequence(bytes([0xe1, 0xec], [0xee, 0xef]), continuation, continuation),
  sequence(bytes([0xed, 0xed]), bytes([0x80, 0x9f]), continuation),
  sequence(bytes([0xf0, 0xf0]), bytes([0x90, 0xbf]), continuation, continuation),
  sequence(bytes([0xf1, 0xf3]), continuation, continuation, continuation),
  sequence(bytes([0xf4, 0xf4]), bytes([0x80, 0x8f]), continuation, continuation),
  sequence(literal("\\"), choice(...Array.from('"\\/bfnrt', literal))),
  sequence(literal("\\u"), bytes([0x30, 0x39], [0x41, 0x43], [0x45, 0x46], [0x61, 0x63], [0x65, 0x66]), hex, hex, hex),
  sequence(literal("\\u"), choice(literal("d"), literal("D")), bytes([0x30, 0x37]), hex, hex),
);
const magnitudeGrammar = sequence(
  choice(literal("0"), sequence(bytes([0x31, 0x39]), between(digit, 0, INTEGER_DIGITS - 1))),
  optional(sequence(literal("."), between(digit, 1, 15))),
  // Two digits: 1e999 is no number in most languages.
  optional(
    sequence(choice(literal("e"), literal("E")), optional(choice(literal("+"), literal("-"))), between(digit, 1, 2)),
  ),
);
const anyValue: GrammarNode = choice(
  literal("null"),
  literal("true"),
  literal("false"),
  sequence(optional(literal("-")), magnitudeGrammar),
  sequence(quote, repeat(character), quote),
  { type: "reference", target: () => anyArray },
  { type: "reference", target: () => anyObject },
);
const anyArray = sequence(
  literal("["),
  space,
  optional(sequence(anyValue, repeat(sequence(comma, anyValue)), space)),
  literal("]"),
);
const anyObject = objectOf(sequence(quote, repeat(character), quote, colon, anyValue));

/** An object of any number of members. */
function objectOf(member: GrammarNode): GrammarNode {
  return sequence(
    literal("{"),
    space,
    optional(sequence(member, repeat(sequence(comma, member)), space)),
    literal("}"),
  );
}

function refusal(path: string, what: string): FulgurError {
  return new FulgurError("ERR_INVALID_REQUEST", `The schema of the answer, at ${path}: ${what}.`);
}
