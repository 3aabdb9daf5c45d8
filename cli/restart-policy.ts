/** When a part that has crashed is started again. Decides only; the supervisor acts. */

export interface RestartOptions {
  /** A part that lived shorter than this crashed quickly. */
  readonly quickMs?: number;
  /** So many quick crashes in a row and the part is given up. */
  readonly quickLimit?: number;
  readonly firstDelayMs?: number;
  readonly maxDelayMs?: number;
}

export type RestartDecision =
  | { readonly action: "restart"; readonly afterMs: number }
  | { readonly action: "give-up"; readonly quickCrashes: number };

/**
 * Counts a part's crashes: each quick one in a row doubles the pause, the third gives the part up. A part that lived
 * long enough starts afresh.
 */
export function restartPolicy(options: RestartOptions = {}): (livedMs: number) => RestartDecision {
  const { quickMs = 30_000, quickLimit = 3, firstDelayMs = 250, maxDelayMs = 10_000 } = options;
  let quickCrashes = 0;
  return (livedMs) => {
    quickCrashes = livedMs < quickMs ? quickCrashes + 1 : 0;
    if (quickCrashes >= quickLimit) return { action: "give-up", quickCrashes };
    return { action: "restart", afterMs: Math.min(maxDelayMs, firstDelayMs * 2 ** Math.max(0, quickCrashes - 1)) };
  };
}
