import { setTimeout as delay } from "node:timers/promises";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { killPart, lastWords, processes, type Part, type PartEnd, type PartName, type RunningPart } from "./part.ts";
import type { Reaper } from "./reaper.ts";
import { restartPolicy, type RestartOptions } from "./restart-policy.ts";

/** What the supervisor did, for the terminal. */
export type SupervisorEvent =
  | { readonly type: "ended"; readonly part: PartName; readonly how: string; readonly retryMs: number }
  | { readonly type: "unresponsive"; readonly part: PartName; readonly why: string }
  | { readonly type: "restarted"; readonly part: PartName; readonly pid: number; readonly ms: number };

export interface SupervisorOptions {
  readonly reaper: Reaper;
  readonly onEvent: (event: SupervisorEvent) => void;
  readonly restart?: RestartOptions;
  readonly probeEveryMs?: number;
  /** So many failed probes in a row and the part is killed, to be started again. */
  readonly probeLimit?: number;
}

export interface Supervised {
  readonly first: RunningPart;
  /** Resolves when a part that ends by itself has done so, with the code. */
  readonly finished: Promise<number>;
}

export interface Supervisor {
  /** Starts a part and keeps it running. Throws when its first start fails. */
  run(part: Part): Promise<Supervised>;
  /** Rejects once a part was given up; never resolves. */
  readonly failed: Promise<never>;
  /** Stops every part in the reverse order of their start. Repeatable. */
  stop(): Promise<void>;
  /** Kills every part at once. */
  kill(): void;
}

interface Kept {
  /** The start that is under way or was the last; it may reject. */
  starting: Promise<RunningPart> | undefined;
  running: RunningPart | undefined;
  /** The code that it ended with by itself. */
  finalCode: number | undefined;
}

/**
 * Keeps the parts of an installation running: a part that ends is started again after a growing pause, a part that
 * answers no probe is killed first, and one that crashes quickly three times in a row fails the whole.
 */
export function createSupervisor(options: SupervisorOptions): Supervisor {
  const { reaper, onEvent, restart = {}, probeEveryMs = 2_000, probeLimit = 3 } = options;
  const stopped = new AbortController();
  const failure = Promise.withResolvers<never>();
  failure.promise.catch(() => {}); // it may reject while nobody waits for it yet
  const kept: Kept[] = [];
  let stopping: Promise<void> | undefined;

  const alive = new Set<number>();
  const onSpawned = (pid: number): void => {
    alive.add(pid);
    reaper.watch(pid);
    if (stopped.signal.aborted) terminate(pid);
  };
  const onEnded = (pid: number): void => {
    alive.delete(pid);
    reaper.release(pid);
  };
  processes.on("spawned", onSpawned).on("ended", onEnded);

  async function begin(part: Part, entry: Kept): Promise<RunningPart> {
    entry.running = undefined;
    entry.starting = part.start();
    const running = await entry.starting;
    entry.running = running;
    if (stopped.signal.aborted) await running.stop();
    return running;
  }

  function close(): void {
    processes.off("spawned", onSpawned).off("ended", onEnded);
    reaper.close();
  }

  async function keep(part: Part, entry: Kept, first: RunningPart): Promise<void> {
    const decide = restartPolicy(restart);
    let running = first;
    let startedAt = performance.now();
    for (;;) {
      const end = await endOf(part, running);
      if (stopped.signal.aborted) return;
      if (end.code !== null && part.finalCodes?.includes(end.code) === true) {
        entry.finalCode = end.code;
        return;
      }
      // Each failed start counts as a crash too.
      for (let how = describe(end), livedMs = performance.now() - startedAt; ; livedMs = 0) {
        const decision = decide(livedMs);
        if (decision.action === "give-up") {
          throw new FulgurError(
            "ERR_INTERNAL",
            `the ${part.name} ended ${decision.quickCrashes} times in a row (the last time it ${how}). ${await lastWords(part.logPath)}`,
          );
        }
        onEvent({ type: "ended", part: part.name, how, retryMs: decision.afterMs });
        const downAt = performance.now();
        await delay(decision.afterMs, undefined, { signal: stopped.signal }).catch(() => {});
        if (stopped.signal.aborted) return;
        try {
          running = await begin(part, entry);
          startedAt = performance.now();
          onEvent({ type: "restarted", part: part.name, pid: running.pid, ms: startedAt - downAt });
          break;
        } catch (error) {
          how = `did not start: ${messageOf(error)}`;
        }
      }
    }
  }

  /** Waits for the end, and brings it about when the probe fails again and again. */
  async function endOf(part: Part, running: RunningPart): Promise<PartEnd> {
    const { probe, ended } = running;
    if (probe === undefined) return ended;
    const over = new AbortController();
    void ended.then(() => over.abort());
    const signal = AbortSignal.any([over.signal, stopped.signal]);
    let failures = 0;
    while (!signal.aborted) {
      await delay(part.probeEveryMs ?? probeEveryMs, undefined, { signal }).catch(() => {});
      if (signal.aborted) break;
      try {
        await probe();
        failures = 0;
      } catch (error) {
        failures += 1;
        if (failures < probeLimit || signal.aborted) continue;
        onEvent({ type: "unresponsive", part: part.name, why: messageOf(error) });
        killPart(running.pid);
        break;
      }
    }
    return ended;
  }

  return {
    failed: failure.promise,
    async run(part) {
      const entry: Kept = { starting: undefined, running: undefined, finalCode: undefined };
      kept.push(entry);
      const first = await begin(part, entry);
      const finished = Promise.withResolvers<number>();
      keep(part, entry, first).then(
        () => {
          if (entry.finalCode !== undefined) finished.resolve(entry.finalCode);
        },
        (error: unknown) => failure.reject(error instanceof Error ? error : new Error(String(error))),
      );
      return { first, finished: finished.promise };
    },
    stop() {
      return (stopping ??= (async () => {
        stopped.abort();
        // What has not said that it is ready has nothing to lose.
        const ready = new Set(kept.map(({ running }) => running?.pid));
        for (const pid of alive) if (!ready.has(pid)) terminate(pid);
        await Promise.allSettled(kept.map(async ({ starting }) => starting));
        for (const { running } of kept.toReversed()) await running?.stop();
        close();
      })());
    },
    kill() {
      stopped.abort();
      for (const pid of alive) killPart(pid);
      close();
    },
  };
}

function terminate(pid: number): void {
  try {
    process.kill(pid, "SIGTERM");
  } catch {
    // gone already
  }
}

function describe({ code, signal }: PartEnd): string {
  return signal === null ? `ended with code ${code ?? "unknown"}` : `was ended by ${signal}`;
}
