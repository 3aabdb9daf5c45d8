import { Command, Option } from "commander";
import { z } from "zod";
import { snakeKeys } from "#shared/wire.ts";
import { localEdge } from "../edge-access.ts";
import { integer, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { columns, minuteOf } from "../terminal/columns.ts";
import { styleFor } from "../terminal/style.ts";

const flagsSchema = z.object({ json: z.boolean().default(false), limit: z.number(), stateDir: z.string() });

/** `fulgur audit`: who minted, revoked, promoted, deleted. */
export function auditCommand(): Command {
  return new Command("audit")
    .description("who minted, revoked, promoted and deleted what, newest first")
    .addOption(new Option("--limit <n>", "how many").default(50).argParser(integer(1, 1000)))
    .option("--json", "print JSON, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { json, limit, stateDir: folder } = flagsSchema.parse(given);
      const { client } = await localEdge(stateDir(folder), "admin");
      const { entries } = await client.listAudit({ limit: String(limit) });
      if (json) return console.log(JSON.stringify(entries.map(snakeKeys), null, 2));
      console.log(
        columns(
          ["WHEN (UTC)", "WHO", "WHAT", "TO", "DETAIL"],
          entries.map((entry) => [
            minuteOf(entry.createdAt),
            entry.actor,
            entry.action,
            entry.target,
            entry.detail === null ? "" : JSON.stringify(entry.detail),
          ]),
          styleFor(process.stdout.isTTY, process.env),
        ),
      );
    });
}
