import type { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { parseObject, type Json } from "./answer.ts";

/**
 * A request's JSON body by its schema.
 * @param what the request's name with its article, for the message
 * @throws FulgurError ERR_INVALID_REQUEST saying which field was wanted how
 */
export function parseRequest<T>(schema: z.ZodType<T>, text: string, what: string): T {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    throw new FulgurError("ERR_INVALID_REQUEST", `the body is not valid JSON; send ${what}`, { cause });
  }
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw unusable(issue?.path.join(".") ?? "", issue?.message ?? "is not usable");
}

/** A body and the model that it asks for; whatever else it says is for the dialect, or for a provider, to check. */
export function readModel(text: string): { readonly body: Json; readonly model: string } {
  const body = parseObject(text);
  if (body === undefined) throw unusable("", "is not a JSON object");
  const { model } = body;
  if (typeof model !== "string" || model === "" || model.length > 256) {
    throw unusable("model", "must be a name of at most 256 characters");
  }
  return { body, model };
}

/** A field, by its path in the body, that is not as it was wanted. */
export function unusable(path: string, what: string): FulgurError {
  return new FulgurError("ERR_INVALID_REQUEST", path === "" ? `the body: ${what}` : `${path}: ${what}`);
}
