/**
 * How long a request waits for what: all its limits share one timer, since each timer of the runtime's costs a call a
 * hundredth of its time, and a call waits for three things in turn. They are seconds and minutes, kept to within
 * {@link LOOK_EVERY_MS}.
 *
 * The timer is the request's own: the runtime ends a request that waits for nothing but what another one resolves.
 */
export interface Limits {
  /**
   * @param late called once, when `ms` have passed
   * @returns calls it off
   */
  after(ms: number, late: () => void): () => void;
  /**
   * Ends the timer, where the request has nothing left to wait for: it would hold the request's memory until its next look,
   * which costs a busy edge a twentieth of its time.
   */
  end(): void;
}

export interface LimitsOptions {
  readonly lookEveryMs?: number;
  readonly now?: () => number;
}

const LOOK_EVERY_MS = 500;

interface Limit {
  readonly at: number;
  readonly late: () => void;
}

export function limits({ lookEveryMs = LOOK_EVERY_MS, now = Date.now }: LimitsOptions = {}): Limits {
  const open = new Set<Limit>();
  let timer: ReturnType<typeof setInterval> | undefined;

  function look(): void {
    const at = now();
    for (const limit of open) {
      if (limit.at > at) continue;
      open.delete(limit);
      limit.late();
    }
    // Between two limits it goes on: to end and begin again is what costs.
    if (open.size === 0) end();
  }

  function end(): void {
    clearInterval(timer);
    timer = undefined;
  }

  return {
    after(ms, late) {
      const limit = { at: now() + ms, late };
      open.add(limit);
      timer ??= setInterval(look, lookEveryMs);
      return () => open.delete(limit);
    },
    end,
  };
}
