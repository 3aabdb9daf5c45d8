import { DrizzleQueryError } from "drizzle-orm/errors";
import { FulgurError } from "#shared/errors.ts";
import { errorResponse } from "../../http-errors.ts";
import { storeAway } from "../../proxy/admission.ts";

/** Errors as Agent Lightning's clients know them: `{ detail }`, a text, or a list of the fields that do not fit. */

/** A field that does not fit. */
export interface FieldIssue {
  /** Where it is: `body` or `query`, then names and positions. */
  readonly loc: readonly (string | number)[];
  readonly type: string;
  readonly msg: string;
}

/** The request does not fit its schema: 422 there, where the rest of this edge answers 400. */
export class UnprocessableError extends FulgurError {
  readonly issues: readonly FieldIssue[];

  constructor(issues: readonly FieldIssue[]) {
    const [first] = issues;
    super(
      "ERR_INVALID_REQUEST",
      first === undefined ? "the request does not fit" : `${first.loc.join(".")}: ${first.msg}`,
    );
    this.issues = issues;
  }
}

/** The answer to whatever was thrown. */
export async function detailResponse(thrown: unknown): Promise<Response> {
  if (thrown instanceof UnprocessableError) return Response.json({ detail: thrown.issues }, { status: 422 });
  return withDetail(thrown, ({ message }) => ({ detail: message }));
}

/** The same of an LLM call, as OpenAI's SDKs read it too. */
export function llmErrorResponse(thrown: unknown): Promise<Response> {
  return withDetail(thrown, (error) => ({ error, detail: error.message }));
}

interface OpenAiError {
  readonly message: string;
}

async function withDetail(thrown: unknown, shape: (error: OpenAiError) => object): Promise<Response> {
  // A read that failed: these clients repeat a 503 and give up at a 500.
  const answered = errorResponse(thrown instanceof DrizzleQueryError ? storeAway(thrown) : thrown);
  const body: { error: OpenAiError } = await answered.json();
  return Response.json(shape(body.error), { status: answered.status, headers: answered.headers });
}

/** What a route of a service there answers to another method. */
export function methodNotAllowed(method: string, allowed: readonly string[]): Response {
  return Response.json(
    { detail: `this route takes ${allowed.join(" and ")}, not ${method}` },
    { status: 405, headers: { allow: allowed.join(", ") } },
  );
}
