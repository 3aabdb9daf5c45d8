import { deepCompareStrict, format as formats, Validator, type Schema } from "@cfworker/json-schema";
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
  prepare(schema);
}

function prepare(schema: Readonly<Record<string, Json>>): { readonly isValid: (value: unknown) => boolean } {
  const patterns = new Map<string, string>();
  const safe = withoutPatterns(schema, patterns);
  let validator: Validator;
  try {
    // The text came as JSON through a JSON schema; the validator looks at the keywords that it knows.
    validator = new Validator(safe as Schema, "2020-12");
  } catch (cause) {
    throw cannotJudge("its JSON schema is not usable (an unknown $ref or a repeated $id)", cause);
  }
  return {
    isValid(value) {
      // Validation is synchronous, so nobody else sees these names.
      for (const [name, source] of patterns) {
        formats[name] = (text: string) => compilePattern(source).search(text) !== undefined;
      }
      try {
        return validator.validate(value).valid;
      } catch (cause) {
        throw cannotJudge("its JSON schema refers to itself without end, or to what is not there", cause);
      } finally {
        for (const name of patterns.keys()) Reflect.deleteProperty(formats, name);
      }
    },
  };
}

/** Keywords whose values are data, not schemas. */
const DATA = new Set(["const", "default", "enum", "examples"]);
/** Keywords whose values hold schemas by name. */
const BY_NAME = new Set(["$defs", "definitions", "dependentSchemas", "properties"]);

/**
 * The schema with each `pattern` as a format of its own: the validator would give a tenant's pattern to the native RegExp,
 * which one can make run for hours (see pattern.ts).
 */
function withoutPatterns(schema: Json, patterns: Map<string, string>): Json {
  if (Array.isArray(schema)) return schema.map((each) => withoutPatterns(each, patterns));
  if (schema === null || typeof schema !== "object") return schema;
  if (schema["patternProperties"] !== undefined) {
    throw cannotJudge("JSON schemas are taken without patternProperties; name the properties, or use propertyNames");
  }
  const rest: Record<string, Json> = {};
  for (const [key, value] of Object.entries(schema)) {
    if (key === "pattern" && typeof value === "string") continue;
    if (DATA.has(key)) rest[key] = value;
    else if (BY_NAME.has(key) && value !== null && typeof value === "object" && !Array.isArray(value)) {
      rest[key] = Object.fromEntries(
        Object.entries(value).map(([name, inner]) => [name, withoutPatterns(inner, patterns)]),
      );
    } else rest[key] = withoutPatterns(value, patterns);
  }
  const { pattern } = schema;
  if (typeof pattern !== "string") return rest;
  compilePattern(pattern);
  const name = `pattern:${pattern}`;
  patterns.set(name, pattern);
  return { ...rest, allOf: [...(Array.isArray(rest["allOf"]) ? rest["allOf"] : []), { format: name }] };
}
