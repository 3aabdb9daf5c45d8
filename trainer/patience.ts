import pRetry, { AbortError } from "p-retry";
import { z } from "zod";
import { FulgurError, messageOf, type ErrorCode } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";

const log = logger("trainer");

/** Codes that time may cure: the part restarts, the store comes back, the load passes. */
const PASSING: ReadonlySet<ErrorCode> = new Set(["ERR_UPSTREAM", "ERR_STORE", "ERR_OVERLOADED", "ERR_TIMEOUT"]);

export interface PatienceOptions {
  /** How long a call is tried again before its error rises. */
  readonly limitMs: number;
  readonly signal?: AbortSignal;
  readonly firstDelayMs?: number;
}

type Methods<T> = { readonly [K in keyof T]: T[K] };

/**
 * The same functions, each tried again with growing pauses while its failure is one that time may cure. For functions
 * that may be repeated: all writes of the edge's client and all reads of the store are.
 */
export function patient<T extends object>(target: T, options: PatienceOptions): Methods<T> {
  return new Proxy(target, {
    get(object, name, receiver) {
      const value: unknown = Reflect.get(object, name, receiver);
      if (typeof value !== "function") return value;
      return (...given: readonly unknown[]) =>
        insist(String(name), () => Promise.resolve(Reflect.apply(value, object, given)), options);
    },
  });
}

/**
 * Runs a repeatable action until it succeeds, fails for good, or the limit is over.
 * @throws whatever the action threw last
 */
export function insist<T>(what: string, action: () => Promise<T>, options: PatienceOptions): Promise<T> {
  const { limitMs, signal, firstDelayMs = 100 } = options;
  return pRetry(
    async () => {
      try {
        return await action();
      } catch (error) {
        if (!mayPass(error)) throw new AbortError(error instanceof Error ? error : messageOf(error));
        throw error;
      }
    },
    {
      // The limit is in time, not in tries.
      retries: 10_000,
      maxRetryTime: limitMs,
      minTimeout: firstDelayMs,
      maxTimeout: 3000,
      factor: 1.7,
      randomize: true,
      ...(signal === undefined ? {} : { signal }),
      onFailedAttempt: ({ error, attemptNumber }) => {
        if (attemptNumber === 1 || attemptNumber % 10 === 0) {
          log.warn("call.retried", { what, attempt: attemptNumber, error: messageOf(error) });
        }
      },
    },
  );
}

/** Bugs, refusals and answers of another form stay what they are; p-retry itself knows which TypeErrors are network's. */
export function mayPass(error: unknown): boolean {
  if (error instanceof FulgurError) return PASSING.has(error.code);
  return !(error instanceof z.ZodError) && !/SQLITE_(ERROR|CONSTRAINT|MISMATCH|AUTH)/.test(messageOf(error));
}
