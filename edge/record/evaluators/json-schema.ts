import { deepCompareStrict, dereference, format as formats, Validator, type Schema } from "@cfworker/json-schema";
import { FulgurError } from "#shared/errors.ts";
import type { Json } from "#shared/tables.ts";
import { compilePattern } from "../pattern.ts";
import { cannotJudge, type Evaluate } from "./contract.ts";

/** Well formed where the whole text is JSON that the schema takes; right where it also equals what is expected, if anything is. */
export const jsonSchemaMatch: Evaluate<"json_schema"> = ({ schema }, { result, expected }) => {
  const { isValid } = prepare(schema);
  let value: unknown;
  try {
    value = JSON.parse(result);
  } catch {
    return { correctness: 0, format: 0 };
  }
  if (!isValid(value)) return { correctness: 0, format: 0 };
  return { correctness: expected === null || deepCompareStrict(value, expected) ? 1 : 0, format: 1 };
};

/** @throws FulgurError ERR_INVALID_REQUEST for a schema that could not judge */
export function checkJsonSchema(schema: Readonly<Record<string, Json>>): void {
  const { parts } = prepare(schema);
  for (const part of Object.values(parts)) {
    if (typeof part === "boolean") continue;
    const { $ref, __absolute_ref__: target } = part;
    if (target === undefined || target in parts) continue;
    throw cannotJudge(`its JSON schema refers to ${JSON.stringify($ref)}, which is not in it`);
  }
}

interface Prepared {
  /** The schema and those within it, by their URI. */
  readonly parts: ReturnType<typeof dereference>;
  readonly isValid: (value: unknown) => boolean;
}

/**
 * How often a validation may come to a subschema. References can lead to one subschema 2ⁿ times from n lines, and a judge
 * runs where everybody's rollouts are finished.
 */
const MAX_VISITS = 100_000;

// The validator's own is a regular expression that a text of forty letters keeps busy for hours.
formats["url"] = (text) => URL.canParse(text);

function prepare(schema: Readonly<Record<string, Json>>): Prepared {
  const patterns = new Map<string, string>();
  const visits = { left: MAX_VISITS };
  let safe: Json;
  let validator: Validator;
  let parts: Prepared["parts"];
  try {
    safe = boundedSchema(schema, { patterns, visits });
    // The text came as JSON through a JSON schema; the validator looks at the keywords that it knows.
    validator = new Validator(safe as Schema, "2020-12");
    parts = dereference(safe as Schema);
  } catch (cause) {
    if (cause instanceof FulgurError) throw cause;
    throw cannotJudge("its JSON schema is not usable (an unknown $ref, a repeated $id, or too deep)", cause);
  }
  return {
    parts,
    isValid(value) {
      visits.left = MAX_VISITS;
      // Validation is synchronous, so nobody else sees these names.
      for (const [name, source] of patterns) {
        formats[name] = (text: string) => compilePattern(source).search(text) !== undefined;
      }
      try {
        return validator.validate(value).valid;
      } catch (cause) {
        if (cause instanceof FulgurError) throw cause;
        throw cannotJudge("its JSON schema refers to itself without end, or to what is not there", cause);
      } finally {
        for (const name of patterns.keys()) Reflect.deleteProperty(formats, name);
      }
    },
  };
}

/** Keywords whose values are data to compare with, not schemas. */
const DATA = new Set(["const", "enum"]);
/** Keywords that check nothing, and in which a `$ref` could find a schema that nobody looked at. */
const ANNOTATIONS = new Set(["default", "examples"]);
/** Keywords whose values hold schemas by name. */
const BY_NAME = new Set(["$defs", "definitions", "dependencies", "dependentSchemas", "properties"]);

interface Bounds {
  /** Name of a format → the tenant's pattern that it stands for. */
  readonly patterns: Map<string, string>;
  readonly visits: { left: number };
}

/**
 * The schema with each `pattern` as a format of its own, and with its visits counted: the validator would give a tenant's
 * pattern to the native RegExp, which one can make run for hours (see pattern.ts).
 */
function boundedSchema(schema: Json, bounds: Bounds): Json {
  if (Array.isArray(schema)) return schema.map((each) => boundedSchema(each, bounds));
  if (schema === null || typeof schema !== "object") return schema;
  if (schema["patternProperties"] !== undefined) {
    throw cannotJudge("JSON schemas are taken without patternProperties; name the properties, or use propertyNames");
  }
  const bounded: Record<string, Json> = {};
  for (const [key, value] of Object.entries(schema)) {
    if (ANNOTATIONS.has(key) || key === "format" || (key === "pattern" && typeof value === "string")) continue;
    if (DATA.has(key)) bounded[key] = value;
    else if (BY_NAME.has(key) && value !== null && typeof value === "object" && !Array.isArray(value)) {
      bounded[key] = Object.fromEntries(
        Object.entries(value).map(([name, inner]) => [name, boundedSchema(inner, bounds)]),
      );
    } else bounded[key] = boundedSchema(value, bounds);
  }
  const { pattern, format } = schema;
  if (typeof pattern === "string") {
    compilePattern(pattern);
    const name = `pattern:${pattern}`;
    bounds.patterns.set(name, pattern);
    bounded["allOf"] = [...(Array.isArray(bounded["allOf"]) ? bounded["allOf"] : []), { format: name }];
  }
  // The validator reads a schema's keywords anew at each visit.
  Object.defineProperty(bounded, "format", {
    get() {
      if (bounds.visits.left-- > 0) return format;
      throw cannotJudge(
        `its JSON schema is looked at more than ${MAX_VISITS} times for one text; use fewer references`,
      );
    },
  });
  return bounded;
}
