import { join } from "node:path";
import { runEventSchema, type RunEvent } from "#shared/run-events.ts";
import { spawnPart, type Part } from "../part.ts";
import { ROOT } from "../root.ts";

export interface TrainerPartOptions {
  /** Its own flags, see `node trainer/main.ts --help`. */
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly logDir: string;
  readonly onEvent: (event: RunEvent) => void;
}

/**
 * The trainer as a supervised part: started again after a crash it resumes from its checkpoint, and ending with code 0
 * is its purpose. It gets long to stop, because it writes a checkpoint first.
 */
export function trainerPart({ args, env, logDir, onEvent }: TrainerPartOptions): Part {
  const logPath = join(logDir, "trainer.log");
  return {
    name: "trainer",
    logPath,
    endsByItself: true,
    start: () =>
      spawnPart({
        name: "trainer",
        command: process.execPath,
        args: [join(ROOT, "trainer/main.ts"), ...args],
        logPath,
        env,
        readyUrl: null,
        stopWithinMs: 60_000,
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
