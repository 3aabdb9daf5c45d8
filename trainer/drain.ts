import type { EdgeClient } from "#shared/client.ts";
import { logger } from "#shared/log.ts";
import type { TrainerConfig } from "./config.ts";
import type { Records } from "./records.ts";

const log = logger("trainer");

export interface DrainDeps {
  readonly config: Pick<TrainerConfig, "run" | "drainSeconds" | "pollMs">;
  readonly edge: Pick<EdgeClient, "dropRollouts">;
  readonly records: Pick<Records, "waitingGroups">;
  /** Milliseconds on a clock that only goes forward. */
  readonly now: () => number;
  /** One that a stop does not cut short. */
  readonly pause: (ms: number) => Promise<void>;
}

/**
 * After a stop: waits for the rollouts under way, `drainSeconds` at most, and drops as `run_ended` those that are still
 * open then. Rollouts that have ended stay for the next start of the run. With 0 seconds nothing is done: the agents work
 * on, and the next start finds what they did.
 * @returns how many were dropped
 */
export async function drain({ config, edge, records, now, pause }: DrainDeps): Promise<number> {
  if (config.drainSeconds === 0) return 0;
  const until = now() + config.drainSeconds * 1000;
  for (;;) {
    const open = (await records.waitingGroups(config.run)).flatMap((group) => group.open);
    if (open.length > 0 && now() < until) {
      await pause(Math.min(config.pollMs, until - now()));
      continue;
    }
    for (let at = 0; at < open.length; at += 1000) await edge.dropRollouts(open.slice(at, at + 1000), "run_ended");
    log.info("run.drained", { run: config.run, dropped: open.length });
    return open.length;
  }
}
