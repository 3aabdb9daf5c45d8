import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";

/** Which run `fulgur start` works on: a new one, the unfinished one, or none because it has finished. */

/** Flags of the trainer as they were given, by name: `{ seed: "1", steps: "60" }`. */
export const runSettingsSchema = z.record(z.string(), z.union([z.string(), z.literal(true)]));
export type RunSettings = z.infer<typeof runSettingsSchema>;

/** `.fulgur/runs/current.json` */
export const currentRunSchema = z.object({ run_id: z.string(), task: z.string(), settings: runSettingsSchema });
export type CurrentRun = z.infer<typeof currentRunSchema>;

export type RunChoice =
  | { readonly type: "new" }
  | { readonly type: "resume"; readonly run: CurrentRun }
  | { readonly type: "finished"; readonly run: CurrentRun };

export interface Wanted {
  readonly task: string;
  /** Only what was given on the command line. */
  readonly settings: RunSettings;
  readonly isNew: boolean;
}

/**
 * Without flags, `start` goes on with what it was doing. Flags that differ from a finished run's begin a new one;
 * flags that differ from an unfinished run's are an error, because one of the two would be lost without a word.
 * @throws FulgurError ERR_CONFIG naming the flag
 */
export function chooseRun(wanted: Wanted, current: CurrentRun | undefined, isFinished: boolean): RunChoice {
  if (current === undefined || wanted.isNew) return { type: "new" };
  const different =
    wanted.task === current.task
      ? Object.keys(wanted.settings).find((name) => wanted.settings[name] !== current.settings[name])
      : "task";
  if (isFinished) return different === undefined ? { type: "finished", run: current } : { type: "new" };
  if (different === undefined) return { type: "resume", run: current };
  const began = different === "task" ? current.task : current.settings[different];
  throw new FulgurError(
    "ERR_CONFIG",
    `run ${current.run_id} is unfinished and was begun with ${began === undefined ? `no --${different}` : `--${different}${began === true ? "" : ` ${began}`}`}; ` +
      `leave the flag out to go on with that run, or add --new to leave it and begin another`,
  );
}
