/** How far an ablation has come, in seconds. */
export interface AblationProgress {
  /** What each finished run has taken. */
  readonly finished: readonly number[];
  /** Of the run under way: since it was begun, and left by its own estimate (undefined while it has none). */
  readonly elapsed: number;
  readonly left: number | undefined;
  /** Runs after this one. */
  readonly runsAfter: number;
}

/** Seconds until the last run has ended; undefined while nothing is known to tell by. */
export function timeLeft({ finished, elapsed, left, runsAfter }: AblationProgress): number | undefined {
  const known = finished.reduce((sum, seconds) => sum + seconds, 0);
  const current = left === undefined ? undefined : elapsed + left;
  const runs = finished.length + (current === undefined ? 0 : 1);
  if (runs === 0) return undefined;
  const perRun = (known + (current ?? 0)) / runs;
  return (left ?? Math.max(0, perRun - elapsed)) + perRun * runsAfter;
}
