import { RetryLaterError } from "./http-errors.ts";

/**
 * Requests a minute, as a token bucket for each key: a minute's worth may come at once, then one at a time. It counts in
 * this isolate; a fleet of several lets through that many times more.
 */
export interface RateLimit {
  /** Throws RetryLaterError ERR_OVERLOADED with the time until the next request is let through. */
  take(id: string, perMinute: number, now: number): void;
}

interface Bucket {
  left: number;
  at: number;
}

const MAX_BUCKETS = 10_000;

export function rateLimit(): RateLimit {
  const buckets = new Map<string, Bucket>();
  return {
    take(id, perMinute, now) {
      const before = buckets.get(id);
      const refilled =
        before === undefined ? perMinute : before.left + (Math.max(0, now - before.at) * perMinute) / 60_000;
      const left = Math.min(perMinute, refilled);
      // Re-inserted at the end, so that the first is the one that asked longest ago.
      buckets.delete(id);
      if (buckets.size >= MAX_BUCKETS) {
        const oldest = buckets.keys().next();
        if (!oldest.done) buckets.delete(oldest.value);
      }
      if (left < 1) {
        buckets.set(id, { left, at: now });
        throw new RetryLaterError("ERR_OVERLOADED", `this key may make ${perMinute} requests a minute; slow down`, {
          retryAfterSeconds: ((1 - left) * 60) / perMinute,
        });
      }
      buckets.set(id, { left: left - 1, at: now });
    },
  };
}
