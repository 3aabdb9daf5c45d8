/** One HTTP request and its reply: bodies with a bound, JSON, server-sent events. */

import type { IncomingMessage, ServerResponse } from "node:http";
import { type ErrorCode, FulgurError, messageOf } from "#shared/errors.ts";

/** A request being answered. */
export class Exchange {
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #left = new AbortController();

  constructor(request: IncomingMessage, response: ServerResponse) {
    this.#request = request;
    this.#response = response;
    response.on("close", () => {
      if (!response.writableFinished) this.#left.abort();
    });
  }

  /** Aborted when the client leaves before the reply is whole. */
  get signal(): AbortSignal {
    return this.#left.signal;
  }

  /** Whether the reply has begun, so that a failure can no longer become a status. */
  get isReplying(): boolean {
    return this.#response.headersSent;
  }

  /**
   * The request's body as JSON.
   * @throws FulgurError ERR_TOO_LARGE beyond the bound, ERR_INVALID_REQUEST when it is not JSON
   */
  async body(maxBytes: number): Promise<unknown> {
    const tooLarge = (): FulgurError =>
      new FulgurError("ERR_TOO_LARGE", `The body is larger than ${maxBytes} bytes; shorten it or raise --max-body-mb.`);
    if (Number(this.#request.headers["content-length"] ?? 0) > maxBytes) throw tooLarge();
    const parts: Buffer[] = [];
    let bytes = 0;
    for await (const part of this.#request) {
      if (!Buffer.isBuffer(part)) continue;
      bytes += part.length;
      if (bytes > maxBytes) throw tooLarge();
      parts.push(part);
    }
    try {
      return JSON.parse(Buffer.concat(parts).toString("utf8"));
    } catch (cause) {
      throw new FulgurError("ERR_INVALID_REQUEST", `The body is not JSON: ${messageOf(cause)}`, { cause });
    }
  }

  /** Replies with JSON. */
  json(status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): void {
    this.#whole(status, JSON.stringify(value), "application/json", headers);
  }

  /** Replies with plain text. */
  text(status: number, value: string, type = "text/plain; charset=utf-8"): void {
    this.#whole(status, value, type, {});
  }

  /** Begins a reply of server-sent events; headers go out at once, so that slow answers do not look dead. */
  startEvents(): void {
    this.#response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
    this.#response.flushHeaders();
  }

  /** Sends one event; JSON unless it is the closing word. */
  event(data: unknown): void {
    if (this.#response.destroyed) return;
    this.#response.write(`data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`);
  }

  /** Ends a reply of server-sent events. */
  endEvents(): void {
    this.#response.end();
  }

  /** Replies with what went wrong, in the OpenAI shape; in the middle of a stream as an event. */
  fail(thrown: unknown): void {
    if (this.#response.destroyed || this.#response.writableEnded) return;
    const code: ErrorCode = thrown instanceof FulgurError ? thrown.code : "ERR_INTERNAL";
    const { status, type, name } = STATUS[code] ?? INTERNAL;
    const body = { error: { message: messageOf(thrown), type, param: null, code: name } };
    if (this.isReplying) {
      this.event(body);
      this.endEvents();
      return;
    }
    // What is left of a refused body is not read: the connection ends with the reply.
    const close = code === "ERR_TOO_LARGE" ? { connection: "close" } : {};
    this.json(status, body, {
      ...close,
      ...(status === 401 ? { "www-authenticate": "Bearer" } : {}),
      ...(status === 429 || status === 503 ? { "retry-after": "1" } : {}),
    });
  }

  #whole(status: number, value: string, type: string, headers: Readonly<Record<string, string>>): void {
    if (this.#response.destroyed) return;
    const bytes = Buffer.from(value);
    this.#response.writeHead(status, { "content-type": type, "content-length": bytes.length, ...headers });
    this.#response.end(bytes);
  }
}

interface ErrorShape {
  readonly status: number;
  readonly type: string;
  readonly name: string;
}

const INTERNAL: ErrorShape = { status: 500, type: "server_error", name: "internal_error" };
const STATUS: Partial<Record<ErrorCode, ErrorShape>> = {
  ERR_AUTH: { status: 401, type: "invalid_request_error", name: "invalid_api_key" },
  ERR_FORBIDDEN: { status: 403, type: "invalid_request_error", name: "insufficient_permissions" },
  ERR_STORE: { status: 503, type: "server_error", name: "keys_unavailable" },
  ERR_INVALID_REQUEST: { status: 400, type: "invalid_request_error", name: "invalid_request" },
  ERR_CHECKPOINT: { status: 400, type: "invalid_request_error", name: "invalid_checkpoint" },
  ERR_NOT_FOUND: { status: 404, type: "invalid_request_error", name: "model_not_found" },
  ERR_TOO_LARGE: { status: 413, type: "invalid_request_error", name: "body_too_large" },
  ERR_OVERLOADED: { status: 429, type: "rate_limit_error", name: "queue_full" },
};
