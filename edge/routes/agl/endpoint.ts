import { FulgurError, messageOf } from "#shared/errors.ts";
import type { AglModel } from "#shared/store/agl-models.ts";
import { RetryLaterError } from "../../http-errors.ts";
import { outboundUrl, type OutboundRules } from "../../outbound-url.ts";
import { parseObject, type Json } from "../../proxy/answer.ts";
import type { FailedAttempt } from "../../proxy/upstream.ts";

/** The inference endpoints that trainers register: which one a rollout's calls go to, and the request there. */

export type Endpoint = Pick<AglModel, "model" | "endpoint" | "version">;

/**
 * One endpoint for all calls of a rollout, so that its prompts find their beginnings cached there.
 * @param endpoints at least one, of one model
 */
export async function endpointOf(endpoints: readonly Endpoint[], rolloutId: string): Promise<Endpoint | undefined> {
  const ordered = endpoints.toSorted((one, other) => (one.endpoint < other.endpoint ? -1 : 1));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(rolloutId));
  const number = new DataView(digest).getBigUint64(0);
  return ordered[Number(number % BigInt(Math.max(1, ordered.length)))];
}

export type ProxyMode = "train" | "val";

/** Sampling is the trainer's to say, and the same for all of a mode's rollouts. */
const TEMPERATURES: Readonly<Record<ProxyMode, number>> = { train: 1, val: 0.7 };

/** The fields of a request that are set on its way. */
export interface SetFields {
  readonly model: string;
  readonly temperature: number;
  readonly return_token_ids: true;
  /** Where they are trained on. */
  readonly logprobs?: true;
}

export function setFields(model: string, mode: ProxyMode): SetFields {
  const fields = { model, temperature: TEMPERATURES[mode], return_token_ids: true } as const;
  return mode === "train" ? { ...fields, logprobs: true } : fields;
}

/** The endpoint's address without a trailing slash. @throws FulgurError ERR_FORBIDDEN where the edge may not call it */
export function allowedEndpoint(endpoint: string, rules: OutboundRules): string {
  const address = endpoint.replace(/\/+$/, "");
  try {
    return outboundUrl(address, { what: `the endpoint ${address}`, ...rules });
  } catch (cause) {
    throw new FulgurError("ERR_FORBIDDEN", `${messageOf(cause)}; the operator allows others in UPSTREAM_BASES`, {
      cause,
    });
  }
}

export interface SendOptions {
  /** Asked for before each attempt. */
  readonly url: () => string;
  /** Learns of a failed attempt. @returns whether to repeat it at once */
  readonly failed?: ((attempt: FailedAttempt) => Promise<boolean>) | undefined;
  readonly body: string;
  readonly fetch: typeof fetch;
  /** Ends everything: the client has gone. */
  readonly signal: AbortSignal;
  readonly random?: () => number;
  readonly sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
}

/** What an endpoint answered, whatever its status; `attempts` is how often it was asked. */
export interface EndpointAnswer {
  readonly status: number;
  /** Empty where the answer is not a JSON object. */
  readonly body: Json;
  readonly attempts: number;
}

export const MAX_ATTEMPTS = 6;
const ATTEMPT_TIMEOUT_MS = 300_000;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;
const WORTH_REPEATING = new Set([408, 409, 429]);

/**
 * Posts a request; repeats it after 408, 409, 429, 5xx and connection errors, each time after twice as long. The last
 * answer is given as it is, an error too. Redirects are not followed.
 * @throws FulgurError ERR_UPSTREAM or ERR_TIMEOUT where nothing answered; the signal's reason when the client has gone
 */
export async function sendToEndpoint(options: SendOptions): Promise<EndpointAnswer> {
  const { signal, random = Math.random, sleep = pause } = options;
  for (let attempt = 1; ; attempt++) {
    let failure: unknown;
    try {
      const answer = await once(options);
      const { status } = answer;
      const isRepeated = status >= 500 || WORTH_REPEATING.has(status);
      if (attempt === MAX_ATTEMPTS || !(isRepeated || status === 404)) return { ...answer, attempts: attempt };
      if ((await options.failed?.({ status, reason: `it answered ${status}` })) === true) continue;
      if (!isRepeated) return { ...answer, attempts: attempt };
    } catch (thrown) {
      signal.throwIfAborted();
      if (thrown instanceof FulgurError) throw thrown;
      failure = thrown;
    }
    if (attempt === MAX_ATTEMPTS) throw silent(failure, attempt);
    if (failure !== undefined && (await options.failed?.({ status: undefined, reason: messageOf(failure) }))) continue;
    const backoffMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (attempt - 1));
    await sleep(backoffMs * (0.75 + random() / 2), signal);
    signal.throwIfAborted();
  }
}

async function once({ url, body, fetch: send, signal }: SendOptions): Promise<Omit<EndpointAnswer, "attempts">> {
  const response = await send(url(), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body,
    redirect: "manual",
    signal: AbortSignal.any([signal, AbortSignal.timeout(ATTEMPT_TIMEOUT_MS)]),
  });
  if (response.status >= 300 && response.status < 400) {
    await response.body?.cancel();
    throw new FulgurError("ERR_UPSTREAM", "the model's endpoint answered with a redirect, which is not followed");
  }
  return { status: response.status, body: parseObject(await response.text()) ?? {} };
}

function silent(cause: unknown, attempts: number): RetryLaterError {
  const late = cause instanceof DOMException && cause.name === "TimeoutError";
  return new RetryLaterError(
    late ? "ERR_TIMEOUT" : "ERR_UPSTREAM",
    `the model's endpoint ${late ? "was too slow" : "did not answer"} (${attempts} attempts); is it up?`,
    { cause, retryAfterSeconds: 1 },
  );
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => resolve());
  await promise;
  clearTimeout(timer);
}
