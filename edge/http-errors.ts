import { FulgurError, messageOf, type ErrorCode } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";

/** Where errors meet HTTP: one table from codes to statuses, in the shape that OpenAI's SDKs read. */

const log = logger("edge");

/** An error after which the caller should try again; `retryAfterSeconds` is whole, since LangChain JS ignores any other. */
export class RetryLaterError extends FulgurError {
  readonly retryAfterSeconds: number;

  constructor(
    code: ErrorCode,
    message: string,
    options: { readonly cause?: unknown; readonly retryAfterSeconds: number },
  ) {
    super(code, message, options);
    this.retryAfterSeconds = Math.max(1, Math.ceil(options.retryAfterSeconds));
  }
}

/** Status and OpenAI error type of each code. LLM routes never throw ERR_CONFLICT: SDKs repeat 409. */
const ANSWERS: Readonly<Record<ErrorCode, readonly [status: number, type: string]>> = {
  ERR_AUTH: [401, "authentication_error"],
  // No SDK repeats a 402; a 429 would be asked again until the month is over.
  ERR_BUDGET: [402, "insufficient_quota"],
  ERR_FORBIDDEN: [403, "permission_error"],
  ERR_INVALID_REQUEST: [400, "invalid_request_error"],
  ERR_SHAPE: [400, "invalid_request_error"],
  ERR_NOT_FOUND: [404, "invalid_request_error"],
  ERR_UNKNOWN_POLICY: [404, "invalid_request_error"],
  ERR_CONFLICT: [409, "invalid_request_error"],
  ERR_TOO_LARGE: [413, "invalid_request_error"],
  ERR_OVERLOADED: [429, "rate_limit_error"],
  ERR_UPSTREAM: [502, "server_error"],
  ERR_STORE: [503, "server_error"],
  ERR_TIMEOUT: [504, "server_error"],
  ERR_CHECKPOINT: [500, "server_error"],
  ERR_CONFIG: [500, "server_error"],
  ERR_DISK: [503, "server_error"],
  ERR_INTERNAL: [500, "server_error"],
  ERR_MODEL: [500, "server_error"],
  ERR_PLATFORM: [500, "server_error"],
  ERR_PORT_TAKEN: [500, "server_error"],
};

/** The status that an error is answered with. */
export function statusOf(thrown: unknown): number {
  return ANSWERS[asFulgurError(thrown).code][0];
}

/** `{ error: { message, type, param, code } }`, also the payload of a mid-stream error event. */
export function errorBody(thrown: unknown): {
  error: { message: string; type: string; param: string | null; code: string };
} {
  const error = asFulgurError(thrown);
  return {
    error: {
      message: shortened(told(error)),
      type: ANSWERS[error.code][1],
      param: error.code === "ERR_UNKNOWN_POLICY" ? "model" : null,
      // SDKs and agents know this one by OpenAI's name.
      code: error.code === "ERR_UNKNOWN_POLICY" ? "model_not_found" : error.code,
    },
  };
}

/** Messages repeat names and ids that they were sent, which may be as long as a request. */
const MAX_MESSAGE_CHARACTERS = 1000;

function shortened(message: string): string {
  return message.length <= MAX_MESSAGE_CHARACTERS ? message : `${message.slice(0, MAX_MESSAGE_CHARACTERS)}…`;
}

/** What the store says of a statement names tables and columns: it goes to the log. */
function told({ message }: FulgurError): string {
  if (!message.startsWith("libSQL ")) return message;
  log.warning("write.refused", { reason: message });
  return "the store cannot keep a value of this request, or is out of order; check its fields, then try again";
}

/** The answer to whatever was thrown. Anything that is not a FulgurError is logged and told as an internal error. */
export function errorResponse(thrown: unknown): Response {
  const error = asFulgurError(thrown);
  const status = ANSWERS[error.code][0];
  const headers = new Headers();
  if (error instanceof RetryLaterError) headers.set("retry-after", String(error.retryAfterSeconds));
  else if (status === 429 || status === 503) headers.set("retry-after", "1");
  if (status === 401) headers.set("www-authenticate", "Bearer");
  return Response.json(errorBody(error), { status, headers });
}

function asFulgurError(thrown: unknown): FulgurError {
  if (thrown instanceof FulgurError) return thrown;
  const crossed = codeAcrossRpc(thrown);
  if (crossed !== undefined) return new FulgurError(crossed, messageOf(thrown), { cause: thrown });
  if (isStoreAway(thrown)) {
    return new FulgurError("ERR_STORE", "the store is away; try again in a second", { cause: thrown });
  }
  if (thrown instanceof RangeError && thrown.message.includes("call stack")) {
    return new FulgurError("ERR_INVALID_REQUEST", "the request's JSON is nested too deeply", { cause: thrown });
  }
  log.error("request.failed", { error: messageOf(thrown), stack: thrown instanceof Error ? thrown.stack : undefined });
  return new FulgurError("ERR_INTERNAL", "the edge failed on this request; its log has the cause", { cause: thrown });
}

/** A read that the store did not answer: drizzle wraps what shared/store/connect.ts throws. */
function isStoreAway(thrown: unknown): boolean {
  return thrown instanceof Error && thrown.cause instanceof FulgurError && thrown.cause.code === "ERR_STORE";
}

/** A FulgurError that crossed RPC arrives as a plain Error; its `code` survives as an own property. */
function codeAcrossRpc(thrown: unknown): ErrorCode | undefined {
  if (typeof thrown !== "object" || thrown === null || !("code" in thrown)) return undefined;
  const { code } = thrown;
  return isErrorCode(code) ? code : undefined;
}

function isErrorCode(value: unknown): value is ErrorCode {
  return typeof value === "string" && Object.hasOwn(ANSWERS, value);
}
