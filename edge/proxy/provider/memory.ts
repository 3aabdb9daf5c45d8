import { TtlCache } from "../../ttl-cache.ts";
import type { DialectName } from "../dialect.ts";

/** Which providers have shown that they do not serve a dialect, so that not every call asks again in vain. */
export interface ProviderMemory {
  lacks(baseUrl: string, dialect: DialectName, now: number): boolean;
  noteLack(baseUrl: string, dialect: DialectName, now: number): void;
}

/** Providers learn dialects; once in a while one is asked again. */
const KEPT_MS = 600_000;

export function providerMemory(): ProviderMemory {
  const lacking = new TtlCache<true>({ ttlMs: KEPT_MS });
  const keyOf = (baseUrl: string, dialect: DialectName): string => `${dialect} ${baseUrl}`;
  return {
    lacks: (baseUrl, dialect, now) => lacking.get(keyOf(baseUrl, dialect), now) === true,
    noteLack: (baseUrl, dialect, now) => lacking.set(keyOf(baseUrl, dialect), true, now),
  };
}
