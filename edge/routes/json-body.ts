import type { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { readText } from "../proxy/body.ts";

/** Of the routes that take lists; a thousand tasks fit. */
const MAX_BYTES = 8 * 1_048_576;

/**
 * A request's body as its schema parses it; an absent body counts as `{}`.
 * @throws FulgurError ERR_INVALID_REQUEST naming the first field that does not fit, ERR_TOO_LARGE
 */
export async function jsonBody<S extends z.ZodType>(request: Request, schema: S): Promise<z.output<S>> {
  const text = await readText(request, { maxBytes: MAX_BYTES });
  let body: unknown;
  try {
    body = text === "" ? {} : JSON.parse(text);
  } catch (cause) {
    throw new FulgurError("ERR_INVALID_REQUEST", "the body is not valid JSON", { cause });
  }
  return checked(schema, body, "the body");
}

/** A request's query parameters as their schema parses them. @throws FulgurError ERR_INVALID_REQUEST */
export function query<S extends z.ZodType>(url: string, schema: S): z.output<S> {
  return checked(schema, Object.fromEntries(new URL(url).searchParams), "the query");
}

/** A value as its schema parses it. @throws FulgurError ERR_INVALID_REQUEST naming `what` */
export function checked<S extends z.ZodType>(schema: S, value: unknown, what: string): z.output<S> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const path = issue?.path.join(".") ?? "";
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    `${what}${path === "" ? "" : `'s ${path}`} is not usable: ${issue?.message ?? "unknown"}`,
  );
}
