import { useEffect, useState } from "preact/hooks";

export interface Polled<T> {
  readonly value: T | undefined;
  readonly error: string | undefined;
}

/** Asks again every `everyMs` while the page is visible; the last good value stays on screen through an error. */
export function usePolled<T>(ask: () => Promise<T>, key: string, everyMs: number): Polled<T> {
  const [state, setState] = useState<Polled<T> & { key: string }>({ key, value: undefined, error: undefined });
  useEffect(() => {
    let stopped = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const round = async (): Promise<void> => {
      if (document.visibilityState === "visible") {
        try {
          const value = await ask();
          if (!stopped) setState({ key, value, error: undefined });
        } catch (thrown) {
          const error = thrown instanceof Error ? thrown.message : String(thrown);
          if (!stopped) setState((last) => ({ ...last, error }));
        }
      }
      if (!stopped) timer = setTimeout(() => void round(), everyMs);
    };
    void round();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
    // `ask` is made anew at each render; `key` names what it asks for.
  }, [key, everyMs]);
  return state.key === key ? state : { value: undefined, error: undefined };
}
