/** What a step's time is spent on; `docs/METRICS.md` has each as `seconds_…`. */
export type Phase = "wait" | "score" | "reference" | "backward" | "optimizer" | "checkpoint" | "publish" | "load";

export interface Measured {
  /** Seconds by phase; a phase that nothing was done in is missing. */
  readonly seconds: Readonly<Partial<Record<Phase, number>>>;
  /** Floating-point operations that the model needed (flops.ts). */
  readonly flops: number;
}

/** Adds up a step's times and operations as they are spent. Phases may lie inside each other: loading is a part of publishing. */
export class StepMeter implements Measured {
  readonly #now: () => number;
  readonly #seconds: Partial<Record<Phase, number>> = {};
  #flops = 0;

  /** @param now milliseconds on a clock that only goes forward */
  constructor(now: () => number) {
    this.#now = now;
  }

  get seconds(): Measured["seconds"] {
    return this.#seconds;
  }

  get flops(): number {
    return this.#flops;
  }

  /** Runs an action and counts its time, also when it fails. */
  async time<T>(phase: Phase, action: () => Promise<T>): Promise<T> {
    const startedAt = this.#now();
    try {
      return await action();
    } finally {
      this.#seconds[phase] = (this.#seconds[phase] ?? 0) + (this.#now() - startedAt) / 1000;
    }
  }

  addFlops(flops: number): void {
    this.#flops += flops;
  }
}
