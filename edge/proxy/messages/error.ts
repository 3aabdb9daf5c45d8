import { errorBody, errorResponse, statusOf } from "../../http-errors.ts";

/** Failures as Anthropic tells them. */

export interface MessagesErrorBody {
  readonly [field: string]: unknown;
  readonly type: "error";
  readonly error: { readonly type: string; readonly message: string };
  readonly request_id: string;
}

const TYPES: Readonly<Record<number, string>> = {
  400: "invalid_request_error",
  401: "authentication_error",
  402: "billing_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  503: "overloaded_error",
  504: "timeout_error",
  529: "overloaded_error",
};

/** Also the data of an error event in mid-stream. */
export function messagesErrorBody(thrown: unknown): MessagesErrorBody {
  const status = statusOf(thrown);
  const { message } = errorBody(thrown).error;
  return {
    type: "error",
    error: { type: TYPES[status] ?? (status >= 500 ? "api_error" : "invalid_request_error"), message },
    request_id: `req_${crypto.randomUUID().replaceAll("-", "")}`,
  };
}

/** Status and headers are those of any other route; the SDK shows a `request-id` header with the error. */
export function messagesErrorResponse(thrown: unknown): Response {
  const { status, headers } = errorResponse(thrown);
  const body = messagesErrorBody(thrown);
  headers.set("request-id", body.request_id);
  headers.delete("content-length");
  return Response.json(body, { status, headers });
}
