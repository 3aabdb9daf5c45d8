/** Ctrl-C, SIGTERM and a closed terminal: the first asks to stop, a second one to stop at once. */
export interface StopSignal {
  /** Resolves at the first signal. */
  readonly requested: Promise<void>;
  wasRequested(): boolean;
  onSecond(handler: () => void): void;
}

/** npm passes Ctrl-C on to its script, which the terminal has told already: one key press, two signals. */
const SAME_PRESS_MS = 1000;

/** Listens from now on. */
export function stopSignal(now: () => number = Date.now): StopSignal {
  const requested = Promise.withResolvers<void>();
  let firstAt: number | undefined;
  let second: () => void = () => {};
  const handle = (): void => {
    if (firstAt === undefined) {
      firstAt = now();
      requested.resolve();
    } else if (now() - firstAt > SAME_PRESS_MS) {
      second();
    }
  };
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, handle);
  return {
    requested: requested.promise,
    wasRequested: () => firstAt !== undefined,
    onSecond: (handler) => {
      second = handler;
    },
  };
}
