export interface TtlCacheOptions {
  readonly ttlMs: number;
  readonly maxEntries?: number;
}

/**
 * Values that one isolate remembers for a while. It holds values and never promises: workerd cancels a request
 * that waits on a promise which another request resolves.
 */
export class TtlCache<V> {
  readonly #entries = new Map<string, { readonly value: V; readonly expiresAt: number }>();
  readonly #ttlMs: number;
  readonly #maxEntries: number;

  constructor({ ttlMs, maxEntries = 10_000 }: TtlCacheOptions) {
    this.#ttlMs = ttlMs;
    this.#maxEntries = maxEntries;
  }

  get(key: string, now: number): V | undefined {
    const entry = this.#entries.get(key);
    return entry !== undefined && entry.expiresAt > now ? entry.value : undefined;
  }

  /** @param expiresAt milliseconds since the epoch, where it is sooner than the cache's own time */
  set(key: string, value: V, now: number, expiresAt = Infinity): void {
    // Re-inserted at the end, so that the first key is the one written longest ago.
    this.#entries.delete(key);
    if (this.#entries.size >= this.#maxEntries) {
      const oldest = this.#entries.keys().next();
      if (!oldest.done) this.#entries.delete(oldest.value);
    }
    this.#entries.set(key, { value, expiresAt: Math.min(now + this.#ttlMs, expiresAt) });
  }

  delete(key: string): void {
    this.#entries.delete(key);
  }
}
