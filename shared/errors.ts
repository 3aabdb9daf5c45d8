/** Errors that a caller can act on: every one carries a stable code and says what to do next. */

/** Codes are part of the wire (`error.code`) and of tests; they are never renamed. */
export type ErrorCode =
  | "ERR_AUTH"
  | "ERR_BUDGET"
  | "ERR_CHECKPOINT"
  | "ERR_CONFIG"
  | "ERR_CONFLICT"
  | "ERR_DISK"
  | "ERR_FORBIDDEN"
  | "ERR_INTERNAL"
  | "ERR_INVALID_REQUEST"
  | "ERR_MODEL"
  | "ERR_NOT_FOUND"
  | "ERR_OVERLOADED"
  | "ERR_PLATFORM"
  | "ERR_PORT_TAKEN"
  | "ERR_SHAPE"
  | "ERR_STORE"
  | "ERR_TIMEOUT"
  | "ERR_TOO_LARGE"
  | "ERR_UNKNOWN_POLICY"
  | "ERR_UPSTREAM";

/**
 * A broken promise. The message says what was wanted, what came (with ids) and what to do next;
 * it never holds a token, a key or a prompt.
 */
export class FulgurError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options: { readonly cause?: unknown } = {}) {
    super(message, options);
    this.name = "FulgurError";
    this.code = code;
  }
}

/** The message of anything that was thrown. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}
