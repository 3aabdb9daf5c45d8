import { readFile } from "node:fs/promises";
import { Command, InvalidArgumentError, Option } from "commander";
import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { snakeKeys } from "#shared/wire.ts";
import type { RecomputeBody, Recomputed } from "#shared/wire-feedback.ts";
import { localEdge } from "../edge-access.ts";
import { stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";

const flagsSchema = z.object({
  agent: z.string().optional(),
  run: z.string().optional(),
  since: z.number().optional(),
  settings: z.string().optional(),
  dryRun: z.boolean().default(false),
  includeTrained: z.boolean().default(false),
  json: z.boolean().default(false),
  stateDir: z.string(),
});

/** A page in which a judge is asked for each rollout must be done within a request's time. */
const PAGE = 100;
const PAGE_WHEN_ASKING = 8;

/** `fulgur rewards recompute`: the rewards of stored rollouts under other settings. */
export function rewardsCommand(): Command {
  const command = new Command("rewards").description("the rewards of stored rollouts");
  command
    .command("recompute")
    .description("compute them anew, under the agents' settings of now or those of a file; the old ones are kept")
    .option("--agent <name>", "only of this agent")
    .option("--run <id>", "only of this run")
    .addOption(new Option("--since <time>", "only of rollouts younger than this, such as 7d or 12h").argParser(age))
    .option("--settings <file>", "JSON with any of tools, alpha, evaluator and correctness_share")
    .option("--dry-run", "say what would change, and change nothing")
    .option("--include-trained", "also of rollouts that were trained on; they stay trained")
    .option("--json", "print JSON")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const flags = flagsSchema.parse(given);
      const { client } = await localEdge(stateDir(flags.stateDir), "trainer");
      const settings = flags.settings === undefined ? undefined : await readSettings(flags.settings);
      const total = await everyPage((page) => client.recomputeRewards(page), {
        dryRun: flags.dryRun,
        includeTrained: flags.includeTrained,
        limit: settings !== undefined && "evaluator" in settings ? PAGE_WHEN_ASKING : PAGE,
        ...(flags.agent === undefined ? {} : { agent: flags.agent }),
        ...(flags.run === undefined ? {} : { runId: flags.run }),
        ...(flags.since === undefined ? {} : { since: Date.now() - flags.since }),
        ...(settings === undefined ? {} : { settings }),
      });
      console.log(flags.json ? JSON.stringify(snakeKeys(total), null, 2) : summary(total, flags.dryRun));
    });
  return command;
}

/**
 * Asks for page after page and adds them up.
 * @throws whatever a page throws, naming where to go on
 */
export async function everyPage(
  ask: (page: RecomputeBody) => Promise<Recomputed>,
  first: RecomputeBody,
): Promise<Omit<Recomputed, "nextAfter">> {
  let total: Omit<Recomputed, "nextAfter"> = {
    scanned: 0,
    changed: 0,
    skipped: 0,
    failed: [],
    failures: 0,
    before: { rewarded: 0, sum: 0 },
    after: { rewarded: 0, sum: 0 },
  };
  let after: string | null = null;
  do {
    const { nextAfter, ...page }: Recomputed = await ask(after === null ? first : { ...first, after });
    total = {
      scanned: total.scanned + page.scanned,
      changed: total.changed + page.changed,
      skipped: total.skipped + page.skipped,
      failed: [...total.failed, ...page.failed].slice(0, MAX_TOLD),
      failures: total.failures + page.failures,
      before: added(total.before, page.before),
      after: added(total.after, page.after),
    };
    after = nextAfter;
  } while (after !== null);
  return total;
}

const MAX_TOLD = 20;

function added(a: Recomputed["before"], b: Recomputed["before"]): Recomputed["before"] {
  return { rewarded: a.rewarded + b.rewarded, sum: a.sum + b.sum };
}

/** What a person wants to know of it. */
export function summary(total: Omit<Recomputed, "nextAfter">, isDryRun: boolean): string {
  const { scanned, changed, skipped, failures, failed, before, after } = total;
  const lines = [
    `${changed} of ${scanned} rollouts ${isDryRun ? "would change" : "changed"}`,
    `mean reward ${meanOf(before)} before, ${meanOf(after)} after`,
  ];
  if (skipped > 0)
    lines.push(`${skipped} left alone: a batch has them (--include-trained takes those that were trained on)`);
  if (failures > 0) {
    lines.push(`${failures} could not be judged and are as they were:`);
    lines.push(...failed.map(({ rollout_id: id, error }) => `  ${id}  ${error}`));
  }
  return lines.join("\n");
}

function meanOf({ rewarded, sum }: Recomputed["before"]): string {
  return rewarded === 0 ? "–" : `${(sum / rewarded).toFixed(4)} (of ${rewarded})`;
}

async function readSettings(path: string): Promise<NonNullable<RecomputeBody["settings"]>> {
  try {
    return z.record(z.string(), z.json()).parse(JSON.parse(await readFile(path, "utf8")));
  } catch (cause) {
    throw new FulgurError("ERR_CONFIG", `${path} is no JSON file of settings: ${messageOf(cause)}`, { cause });
  }
}

const UNIT_MS: Readonly<Record<string, number>> = { m: 60_000, h: 3_600_000, d: 86_400_000 };

/** `7d`, `12h` or `30m` in milliseconds. */
function age(text: string): number {
  const [, count, unit = ""] = /^(\d{1,6})([mhd])$/.exec(text) ?? [];
  const unitMs = UNIT_MS[unit];
  if (count === undefined || unitMs === undefined) throw new InvalidArgumentError("It takes a time such as 7d or 12h.");
  return Number(count) * unitMs;
}
