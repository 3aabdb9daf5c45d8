/**
 * One question at a time for each key: whoever comes while it is asked waits until the answer is there. Without it, a
 * store that is slow for a second is asked by every call that comes meanwhile, and stays slow.
 *
 * Nobody waits on another request's promise, for which workerd would end it: each looks again on a timer of its own.
 */
export interface OneAsker {
  /**
   * @param known what is known by now, if it is good enough
   * @param ask makes it known; what it throws concerns its own caller alone
   */
  ask<V>(key: string, options: { known: () => V | undefined; ask: () => Promise<V>; now: number }): Promise<V>;
}

const LOOK_EVERY_MS = 5;
/** After so long the one that asks may have been ended, and the next one asks. */
const PATIENCE_MS = 2000;

export function oneAsker(): OneAsker {
  /** Since when, by key. */
  const asking = new Map<string, number>();
  return {
    async ask(key, { known, ask, now }) {
      for (let waitedMs = 0; ; waitedMs += LOOK_EVERY_MS) {
        const value = known();
        if (value !== undefined) return value;
        const since = asking.get(key);
        if (since === undefined || now + waitedMs - since >= PATIENCE_MS) break;
        await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      }
      const mine = now;
      asking.set(key, mine);
      try {
        return await ask();
      } finally {
        if (asking.get(key) === mine) asking.delete(key);
      }
    },
  };
}
