import { Command, Option } from "commander";
import { z } from "zod";
import { snakeKeys, type PolicyView } from "#shared/wire.ts";
import { versionName } from "#shared/words.ts";
import { localEdge } from "../edge-access.ts";
import { integer, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { columns, minuteOf } from "../terminal/columns.ts";
import { styleFor } from "../terminal/style.ts";

const flagsSchema = z.object({ json: z.boolean().default(false), limit: z.number(), stateDir: z.string() });

/** `fulgur policies`: lines of weights with their versions, which one answers, and which are retired. */
export function policiesCommand(): Command {
  return new Command("policies")
    .description("list policies and their versions, newest first: which one answers, which are retired")
    .option("--json", "print JSON with every version, as the edge gives it")
    .addOption(
      new Option("--limit <n>", "newest versions of each policy, beside the routed one")
        .default(10)
        .argParser(integer(1, 1_000_000)),
    )
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { json, limit, stateDir: folder } = flagsSchema.parse(given);
      const { client } = await localEdge(stateDir(folder), "read");
      const policies = await client.listPolicies();
      if (json) return console.log(JSON.stringify(policies.map(wireForm), null, 2));
      if (policies.length === 0) return console.log("no policies yet; npm start makes one");
      console.log(
        columns(
          ["VERSION", "STATE", "KIND", "FROM", "RUN", "STEP", "MADE (UTC)"],
          policies.flatMap((policy) => rowsOf(policy, limit)),
          styleFor(process.stdout.isTTY, process.env),
        ),
      );
    });
}

/** A line for each version that is shown: the newest ones, and the routed one wherever it stands. */
export function rowsOf({ name, routeVersion, versions }: PolicyView, limit: number): string[][] {
  return versions
    .filter(({ version }, at) => at < limit || version === routeVersion)
    .map(({ version, kind, parentVersion, runId, step, createdAt, retiredAt }) => [
      versionName(name, version),
      version === routeVersion ? "routed" : retiredAt === null ? "" : `retired ${minuteOf(retiredAt)}`,
      kind,
      parentVersion === null ? "" : versionName(name, parentVersion),
      runId ?? "",
      // The store counts steps from 0, people from 1.
      step === null ? "" : String(step + 1),
      minuteOf(createdAt),
    ]);
}

function wireForm({ versions, ...policy }: PolicyView): unknown {
  return { ...snakeKeys(policy), versions: versions.map(snakeKeys) };
}
