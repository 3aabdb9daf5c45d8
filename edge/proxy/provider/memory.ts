import { TtlCache } from "../../ttl-cache.ts";
import type { DialectName } from "../dialect.ts";

/** What providers have shown of the dialects that they serve, so that not every call tries each anew. */
export interface ProviderMemory {
  /** @param place tenant and address. Undefined where the provider has not been asked of late. */
  serves(place: string, dialect: DialectName, now: number): boolean | undefined;
  note(place: string, dialect: DialectName, seen: { readonly serves: boolean; readonly now: number }): void;
}

/** Providers learn dialects; once in a while one is asked again. */
const KEPT_MS = 600_000;

export function providerMemory(): ProviderMemory {
  const seen = new TtlCache<boolean>({ ttlMs: KEPT_MS });
  const keyOf = (place: string, dialect: DialectName): string => `${dialect} ${place}`;
  return {
    serves: (place, dialect, now) => seen.get(keyOf(place, dialect), now),
    note: (place, dialect, { serves, now }) => seen.set(keyOf(place, dialect), serves, now),
  };
}
