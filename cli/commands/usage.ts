import { Command, Option } from "commander";
import { z } from "zod";
import { localEdge } from "../edge-access.ts";
import { integer, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { usageText } from "../terminal/usage-table.ts";
import { styleFor } from "../terminal/style.ts";

const flagsSchema = z.object({
  json: z.boolean().default(false),
  since: z.string().optional(),
  rollouts: z.number().optional(),
  stateDir: z.string(),
});

/** `fulgur usage`: calls, tokens and cost of the month, agent runs, and the budget. */
export function usageCommand(): Command {
  return new Command("usage")
    .description("calls, tokens and cost per day and model; agent runs; the month's budget")
    .option("--since <day>", "from this UTC day on, such as 2026-11-01 (default: the month's first)")
    .addOption(
      new Option("--rollouts <n>", "also the newest n rollouts, one by one (default: 0, with --json 100)").argParser(
        integer(0, 500),
      ),
    )
    .option("--json", "print JSON, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const flags = flagsSchema.parse(given);
      const { client } = await localEdge(stateDir(flags.stateDir), "read");
      const report = await client.readUsage({
        ...(flags.since === undefined ? {} : { since: flags.since }),
        rollouts: String(flags.rollouts ?? (flags.json ? 100 : 0)),
      });
      console.log(
        flags.json ? JSON.stringify(report, null, 2) : usageText(report, styleFor(process.stdout.isTTY, process.env)),
      );
    });
}
