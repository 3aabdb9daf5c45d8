import { join } from "node:path";
import { runEventSchema, type RunEvent } from "#shared/run-events.ts";
import { spawnPart, type Part } from "../part.ts";
import { ROOT } from "../root.ts";

/** What the trainer ends with when an alarm has paused its run. */
export const PAUSED = 3;

export interface TrainerPartOptions {
  /** Its own flags, see `node trainer/main.ts --help`. */
  readonly args: readonly string[];
  /** How long it may wait for rollouts under way when it is stopped. */
  readonly drainSeconds: number;
  readonly env: Readonly<Record<string, string>>;
  readonly logDir: string;
  readonly onEvent: (event: RunEvent) => void;
}

/**
 * The trainer as a supervised part: started again after a crash it resumes from its checkpoint, and ending with a run that
 * has finished or is paused is its purpose. It gets long to stop, because it writes a checkpoint first.
 */
export function trainerPart({ args, drainSeconds, env, logDir, onEvent }: TrainerPartOptions): Part {
  const logPath = join(logDir, "trainer.log");
  return {
    name: "trainer",
    logPath,
    finalCodes: [0, PAUSED],
    start: () =>
      spawnPart({
        name: "trainer",
        command: process.execPath,
        args: [join(ROOT, "trainer/main.ts"), ...args],
        logPath,
        env,
        readyUrl: null,
        stopWithinMs: 60_000 + drainSeconds * 1000,
        onLine: (line) => {
          const event = parseEvent(line);
          if (event !== undefined) onEvent(event);
        },
      }),
  };
}

/** A line of the trainer's stdout as an event; undefined where a library has written something else there. */
export function parseEvent(line: string): RunEvent | undefined {
  try {
    return runEventSchema.safeParse(JSON.parse(line)).data;
  } catch {
    return undefined;
  }
}
