import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Metrics } from "../../../trainer/metrics/alarms.ts";

const DIR = "test/fixtures/metrics";

/**
 * Journals of real runs that went well, each `npx fulgur start --new --task flight --eval-tasks 0` with the flags that
 * its name says, without the values by task.
 */
export function healthyRuns(): { readonly name: string; readonly steps: readonly Metrics[] }[] {
  return readdirSync(DIR).map((name) => ({
    name,
    steps: readFileSync(join(DIR, name), "utf8")
      .trimEnd()
      .split("\n")
      .map((line): Metrics => JSON.parse(line)),
  }));
}
