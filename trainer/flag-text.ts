import { z } from "zod";

/** What a flag takes and is for, in the words of its schema: for `--help` and for what is said of a wrong value. */

/**
 * A flag's line of help: its description, its choices where they are few words, its default.
 * @param otherwise what holds without the flag, where neither the schema nor the description says it
 */
export function flagHelp(field: z.ZodType, otherwise?: string): string {
  const [, what = "", told] = /^(.*?)(?: \(default: (.*)\))?$/s.exec(field.description ?? "") ?? [];
  const initial = field.safeParse(undefined);
  const value = initial.success ? initial.data : undefined;
  const fallback = told ?? (value === undefined ? otherwise : value === false ? "off" : textOf(value));
  const facts = [choicesOf(field).join(" | "), fallback === undefined ? "" : `default: ${fallback}`];
  const said = facts.filter((fact) => fact !== "").join("; ");
  return said === "" ? what : `${what} (${said})`;
}

/** What a value should have been, such as `a whole number from 1 to 1000`. */
export function wanted(field: z.ZodType): string {
  const choices = choicesOf(field);
  if (choices.length > 0) return `one of ${choices.join(", ")}`;
  const { type, format, minimum, maximum, exclusiveMinimum } = shapeSchema.parse(
    z.toJSONSchema(field, { io: "input", unrepresentable: "any" }),
  );
  if (type === "integer" || type === "number") {
    const high = maximum === undefined || maximum === Number.MAX_SAFE_INTEGER ? undefined : maximum;
    const low = minimum === undefined ? undefined : `from ${minimum}`;
    const range =
      exclusiveMinimum === undefined
        ? [low ?? "", high === undefined ? "up" : `to ${high}`]
        : [`above ${exclusiveMinimum}`, high === undefined ? "" : `and at most ${high}`];
    return [type === "integer" ? "a whole number" : "a number", ...range].filter((part) => part !== "").join(" ");
  }
  if (format === "uri") return "a URL";
  return type === "string" ? "some text" : "true or false, or no value";
}

/** A part of the JSON schema of a field. */
const shapeSchema = z.looseObject({
  /** Several of a switch, which takes true and "true". */
  type: z.union([z.string(), z.array(z.string())]).optional(),
  format: z.string().optional(),
  minimum: z.number().optional(),
  maximum: z.number().optional(),
  exclusiveMinimum: z.number().optional(),
});

function choicesOf(field: z.ZodType): string[] {
  let inner: unknown = field;
  while (inner instanceof z.ZodDefault || inner instanceof z.ZodOptional) inner = inner.unwrap();
  return inner instanceof z.ZodEnum ? inner.options.map(String) : [];
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
