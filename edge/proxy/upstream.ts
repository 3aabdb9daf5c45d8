import { FulgurError, messageOf, type ErrorCode } from "#shared/errors.ts";
import { RetryLaterError } from "../http-errors.ts";
import { isObject, parseObject } from "./answer.ts";
import type { Limits } from "./limits.ts";

export interface UpstreamOptions<T> {
  /** Asked for again before each attempt, where it is a function. */
  readonly url: string | (() => string);
  /** Learns of an attempt that may be worth repeating. @returns whether to do so at once; else after a wait, if at all */
  readonly failed?: (attempt: FailedAttempt) => Promise<boolean>;
  readonly body: string;
  /** Besides or instead of the content type. */
  readonly headers?: Headers;
  /** Who is asked, for messages. */
  readonly name?: string;
  /** A name that the upstream knows a model by → the one that who asked knows it by, for messages. */
  readonly names?: Readonly<Record<string, string>>;
  readonly fetch: typeof fetch;
  /** Aborted from outside it ends everything; aborted from here where an attempt takes too long, which is not repeated. */
  readonly ending: AbortController;
  readonly limits: Limits;
  /** Takes a 2xx answer; a connection that breaks in it counts as a failed attempt. */
  readonly read: (response: Response) => Promise<T> | T;
  readonly maxAttempts?: number;
  /** Until `read` is through, per attempt. */
  readonly timeoutMs?: number;
  readonly random?: () => number;
  readonly sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
}

export interface UpstreamAnswer<T> {
  readonly value: T;
  readonly attempts: number;
}

export interface FailedAttempt {
  /** What it was refused with; undefined where nothing was answered. */
  readonly status: number | undefined;
  readonly reason: string;
}

/** The upstream did not answer; `attempts` is how often it was asked, `status` what it refused with, if it did. */
export class UpstreamError extends RetryLaterError {
  readonly attempts: number;
  readonly status: number | undefined;

  constructor(
    code: ErrorCode,
    message: string,
    options: {
      readonly attempts: number;
      readonly status?: number;
      readonly retryAfterSeconds?: number;
      readonly cause?: unknown;
    },
  ) {
    super(code, message, { cause: options.cause, retryAfterSeconds: options.retryAfterSeconds ?? 1 });
    this.attempts = options.attempts;
    this.status = options.status;
  }
}

const JSON_BODY = { "content-type": "application/json" };
/** 409 is here because endpoints answer it while a version loads. */
const WORTH_REPEATING = new Set([408, 409, 429]);
const FIRST_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 10_000;

/**
 * Posts a request to inference, or to whoever the options name; repeats it after 408, 409, 429, 5xx and connection errors,
 * waiting as long as Retry-After says or else exponentially longer with full jitter, or at once where `failed` says that
 * somebody else can answer, or this one now can after its 404. Nothing of an answer has been passed on before `read`
 * returns, so repeating is safe.
 * @throws UpstreamError ERR_INVALID_REQUEST when the request itself is refused, ERR_OVERLOADED when it stays
 * full, ERR_TIMEOUT when it is too slow, else ERR_UPSTREAM; the signal's reason when the client has gone
 */
export async function askInference<T>(options: UpstreamOptions<T>): Promise<UpstreamAnswer<T>> {
  const { name = "inference", names = {}, maxAttempts = 4, random = Math.random, sleep = pause } = options;
  const { signal } = options.ending;
  for (let attempt = 1; ; attempt++) {
    const url = typeof options.url === "string" ? options.url : options.url();
    const outcome = await once(options, url);
    if (outcome.status === "answered") return { value: outcome.value, attempts: attempt };
    if (signal.aborted && !isTooSlow(signal.reason)) throw signal.reason;
    const { failure, repeat, retryAfterMs } =
      outcome.status === "refused"
        ? await refusal(outcome.response, { name, names, attempts: attempt })
        : unreachable(outcome.cause, { name, url, attempts: attempt });
    if (attempt === maxAttempts) throw failure;
    const { status } = failure;
    // Somebody else may have what this one has not.
    const isAtOnce = (repeat || status === 404) && (await options.failed?.({ status, reason: failure.message }));
    if (isAtOnce === true) {
      signal.throwIfAborted();
      continue;
    }
    if (!repeat || (retryAfterMs ?? 0) > MAX_BACKOFF_MS) throw failure;
    await sleep(retryAfterMs ?? random() * Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** attempt), signal);
    signal.throwIfAborted();
  }
}

type Outcome<T> =
  | { readonly status: "answered"; readonly value: T }
  | { readonly status: "refused"; readonly response: Response }
  | { readonly status: "unreachable"; readonly cause: unknown };

async function once<T>(options: UpstreamOptions<T>, url: string): Promise<Outcome<T>> {
  const { name = "inference", body, headers, fetch: send, ending, limits, read, timeoutMs = 120_000 } = options;
  const callOff = limits.after(timeoutMs, () => {
    ending.abort(new FulgurError("ERR_TIMEOUT", `${name} did not answer within ${timeoutMs} ms`));
  });
  try {
    const response = await send(url, {
      method: "POST",
      headers: headers ?? JSON_BODY,
      body,
      // An address that was allowed must not lead to one that was not.
      redirect: "manual",
      // Stays after the headers: a client that leaves in mid-stream ends the generation.
      signal: ending.signal,
    });
    return response.ok ? { status: "answered", value: await read(response) } : { status: "refused", response };
  } catch (cause) {
    // The runtimes differ in what an aborted fetch throws; the controller knows why.
    return { status: "unreachable", cause: ending.signal.aborted ? ending.signal.reason : cause };
  } finally {
    callOff();
  }
}

interface Failure {
  readonly failure: UpstreamError;
  readonly repeat: boolean;
  readonly retryAfterMs?: number | undefined;
}

interface Asked {
  readonly name: string;
  readonly attempts: number;
}

function unreachable(cause: unknown, { name, url, attempts }: Asked & { readonly url: string }): Failure {
  const tooSlow = isTooSlow(cause);
  const message = tooSlow
    ? `${cause.message} (${attempts} attempts)`
    : `${name} at ${new URL(url).origin} did not answer (${attempts} attempts, last: ${messageOf(cause)})`;
  return {
    failure: new UpstreamError(tooSlow ? "ERR_TIMEOUT" : "ERR_UPSTREAM", message, { attempts, cause }),
    // Slow already: asking again would only double the load.
    repeat: !tooSlow,
  };
}

function isTooSlow(cause: unknown): cause is FulgurError {
  return cause instanceof FulgurError && cause.code === "ERR_TIMEOUT";
}

/** What a status other than 2xx means; reads the body. */
async function refusal(
  response: Response,
  { name, names, attempts }: Asked & { readonly names: Readonly<Record<string, string>> },
): Promise<Failure> {
  const { status } = response;
  const said = Object.entries(names).reduce(
    (text, [theirs, ours]) => text.replaceAll(theirs, ours),
    await reasonOf(response),
  );
  if (status === 400 || status === 413) {
    const message = `${name} refused the request: ${said}`;
    return { failure: new UpstreamError("ERR_INVALID_REQUEST", message, { attempts, status }), repeat: false };
  }
  const retryAfterMs = parseRetryAfter(response.headers.get("retry-after"));
  const failure = new UpstreamError(
    status === 429 ? "ERR_OVERLOADED" : "ERR_UPSTREAM",
    `${name} answered ${status} (${attempts} attempts): ${said}`,
    { attempts, status, retryAfterSeconds: (retryAfterMs ?? 1000) / 1000 },
  );
  return { failure, repeat: (status >= 500 && status !== 501) || WORTH_REPEATING.has(status), retryAfterMs };
}

async function reasonOf(response: Response): Promise<string> {
  const text = await response.text().catch(() => "");
  const body = parseObject(text);
  const error = body?.["error"];
  const message = isObject(error) ? error["message"] : (body?.["message"] ?? body?.["detail"]);
  return (typeof message === "string" ? message : text).slice(0, 500) || "no reason given";
}

/** Seconds or an HTTP date. */
function parseRetryAfter(header: string | null): number | undefined {
  if (header === null) return undefined;
  const seconds = Number(header);
  const ms = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Date.now();
  return Number.isFinite(ms) && ms >= 0 ? ms : undefined;
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => resolve());
  await promise;
  clearTimeout(timer);
}
