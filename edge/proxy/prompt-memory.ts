import type { EarlierCall } from "#shared/prompt-prefix.ts";

/**
 * The last recorded call of each attempt that this isolate served, so that the next one stores only what is new. Bounded by
 * size; an attempt that was forgotten stores its next prompt whole.
 */
export interface PromptMemory {
  last(attempt: string): EarlierCall | undefined;
  /** To be told once the call is durably recorded: what points at it must find it. */
  remember(attempt: string, call: EarlierCall): void;
}

const DEFAULT_MAX_BYTES = 32 * 1_048_576;

export function promptMemory(maxBytes = DEFAULT_MAX_BYTES): PromptMemory {
  // In the order of their last use: a Map keeps the order of insertion.
  const calls = new Map<string, EarlierCall>();
  let bytes = 0;

  function forget(attempt: string): void {
    bytes -= calls.get(attempt)?.tokens.byteLength ?? 0;
    calls.delete(attempt);
  }

  return {
    last: (attempt) => calls.get(attempt),
    remember(attempt, call) {
      forget(attempt);
      calls.set(attempt, call);
      bytes += call.tokens.byteLength;
      for (const [oldest] of calls) {
        if (bytes <= maxBytes) break;
        forget(oldest);
      }
    },
  };
}
