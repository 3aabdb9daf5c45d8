import { z } from "zod";
import { readText } from "../../proxy/body.ts";
import { UnprocessableError, type FieldIssue } from "./errors.ts";

/** Requests of Agent Lightning's clients, parsed as leniently as its own server does (numbers and booleans may be texts). */

/** A trainer posts a step's rollouts at once, each with its job's template. */
const MAX_BYTES = 32 * 1_048_576;

/**
 * A request's body as its schema parses it.
 * @throws UnprocessableError where it is no JSON or does not fit, FulgurError ERR_TOO_LARGE
 */
export async function parseBody<S extends z.ZodType>(request: Request, schema: S): Promise<z.output<S>> {
  const text = await readText(request, { maxBytes: MAX_BYTES });
  if (text === "") throw new UnprocessableError([{ loc: ["body"], type: "missing", msg: "a JSON body is needed" }]);
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    throw new UnprocessableError([{ loc: ["body"], type: "json_invalid", msg: "the body is not valid JSON" }]);
  }
  if (isDeep(body)) {
    throw new UnprocessableError([{ loc: ["body"], type: "json_invalid", msg: "the body is nested too deeply" }]);
  }
  return parse(schema, body, "body");
}

/** Deeper, its clients' own readers give up. */
const MAX_DEPTH = 200;

/** Whether JSON is nested so deeply that not everyone can read it. */
export function isDeep(value: unknown, depth = 0): boolean {
  if (typeof value !== "object" || value === null) return false;
  return depth === MAX_DEPTH || Object.values(value).some((inner) => isDeep(inner, depth + 1));
}

/** Query parameters as their schema parses them; those named in `lists` may be repeated. @throws UnprocessableError */
export function parseQuery<S extends z.ZodType>(url: string, schema: S, lists: readonly string[] = []): z.output<S> {
  const given = new URL(url).searchParams;
  const fields: Record<string, unknown> = {};
  for (const name of new Set(given.keys())) fields[name] = lists.includes(name) ? given.getAll(name) : given.get(name);
  return parse(schema, fields, "query");
}

function parse<S extends z.ZodType>(schema: S, value: unknown, where: "body" | "query"): z.output<S> {
  const parsed = schema.safeParse(value, { reportInput: true });
  if (parsed.success) return parsed.data;
  throw new UnprocessableError(parsed.error.issues.flatMap((issue) => fieldIssues(issue, where)));
}

function fieldIssues(issue: z.core.$ZodIssue, where: string): FieldIssue[] {
  const loc = [where, ...issue.path.map((part) => (typeof part === "number" ? part : String(part)))];
  if (issue.code === "unrecognized_keys") {
    return issue.keys.map((key) => ({ loc: [...loc, key], type: "extra_forbidden", msg: "there is no such field" }));
  }
  return [{ loc, type: typeOf(issue), msg: issue.message }];
}

/** The names that its clients' validation library gives the commonest errors. */
function typeOf(issue: z.core.$ZodIssue): string {
  if (issue.input === undefined) return "missing";
  if (issue.code === "invalid_value") return "enum";
  if (issue.code === "invalid_type") return TYPE_ERRORS[issue.expected] ?? "value_error";
  const named: unknown = issue.code === "custom" ? issue.params?.["type"] : undefined;
  return typeof named === "string" ? named : "value_error";
}

const TYPE_ERRORS: Readonly<Record<string, string>> = {
  string: "string_type",
  array: "list_type",
  object: "model_attributes_type",
  record: "dict_type",
};

/** An integer, or a text or boolean that is one. */
export const laxInt = lax((value) => {
  if (typeof value === "string") return /^\s*[+-]?\d{1,15}(\.0*)?\s*$/.test(value) ? Number(value) : "int_parsing";
  if (typeof value === "boolean") return Number(value);
  if (typeof value !== "number") return "int_type";
  return Number.isSafeInteger(value) ? value : "int_from_float";
}, "an integer is needed");

const WORDS: ReadonlyMap<string, boolean> = new Map([
  ...["1", "true", "t", "yes", "y", "on"].map((word) => [word, true] as const),
  ...["0", "false", "f", "no", "n", "off"].map((word) => [word, false] as const),
]);

/** A boolean, or a usual word for one. */
export const laxBoolean = lax((value) => {
  if (typeof value === "boolean") return value;
  if (typeof value !== "string" && typeof value !== "number") return "bool_type";
  return WORDS.get(String(value).toLowerCase()) ?? "bool_parsing";
}, "a boolean is needed");

/** @param read the value, or the name of what is wrong with it */
function lax<T extends number | boolean>(read: (value: unknown) => T | string, message: string) {
  return z.unknown().transform((value, context): T => {
    const result = read(value);
    if (typeof result !== "string") return result;
    context.addIssue({ code: "custom", message, params: { type: result }, input: value });
    return z.NEVER;
  });
}
