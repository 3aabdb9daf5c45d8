import { Command, Option } from "commander";
import { z } from "zod";
import { snakeKeys, type RolloutDetail, type RolloutView } from "#shared/wire.ts";
import { MODES, ROLLOUT_STATUSES } from "#shared/words.ts";
import { localEdge } from "../edge-access.ts";
import { integer, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { rolloutDetailText } from "../terminal/rollout-detail.ts";
import { rolloutsTable } from "../terminal/rollouts-table.ts";
import { styleFor } from "../terminal/style.ts";

const listFlagsSchema = z.object({
  json: z.boolean().default(false),
  limit: z.number(),
  mode: z.string().optional(),
  status: z.string().optional(),
  run: z.string().optional(),
  stateDir: z.string(),
});

const showFlagsSchema = z.object({ json: z.boolean().default(false), stateDir: z.string() });

/** The newest of a run are the queued ones, of which there is nothing to see. */
const BEGUN = ROLLOUT_STATUSES.filter((status) => status !== "queued").join(",");

/** `fulgur rollouts` lists them, newest first, those that only wait last; `fulgur rollouts show ID` opens one. */
export function rolloutsCommand(): Command {
  const command = new Command("rollouts")
    .description("list rollouts, newest first, those that only wait last; show one with all its calls")
    .option("--json", "print JSON, as the edge gives it: newest first, also those that wait")
    .addOption(new Option("--limit <n>", "how many").default(20).argParser(integer(1, 500)))
    .addOption(new Option("--mode <mode>", "only of this mode").choices(MODES))
    .addOption(new Option("--status <status>", "only in this status").choices(ROLLOUT_STATUSES))
    .option("--run <id>", "only of this run")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const flags = listFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(flags.stateDir), "read");
      const list = async (limit: number, status: string | undefined): Promise<readonly RolloutView[]> => {
        if (limit === 0) return [];
        const { rollouts } = await client.listRollouts({
          limit: String(limit),
          ...(flags.mode === undefined ? {} : { mode: flags.mode }),
          ...(status === undefined ? {} : { status }),
          ...(flags.run === undefined ? {} : { run_id: flags.run }),
        });
        return rollouts;
      };
      if (flags.json) {
        console.log(JSON.stringify((await list(flags.limit, flags.status)).map(snakeKeys), null, 2));
        return;
      }
      const begun = await list(flags.limit, flags.status ?? BEGUN);
      const waiting = flags.status === undefined ? await list(flags.limit - begun.length, "queued") : [];
      console.log(rolloutsTable([...begun, ...waiting], { now: Date.now(), style: style() }));
    });

  command
    .command("show")
    .description("open one rollout: its conversation, its rewards and its calls")
    .argument("<id>", "the rollout's id, such as ro_0199…")
    .option("--json", "print JSON with token ids and logprobs, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (id: string, _given: unknown, self: Command) => {
      // Both levels know --json and --state-dir, and commander may hand them to the outer one.
      const flags = showFlagsSchema.parse(self.optsWithGlobals());
      const { client } = await localEdge(stateDir(flags.stateDir), "read");
      const detail = await client.readRollout(id);
      if (flags.json) console.log(JSON.stringify(wireForm(detail), null, 2));
      else console.log(rolloutDetailText(detail, style()));
    });
  return command;
}

function wireForm({ rollout, attempts, calls, rewards, batch }: RolloutDetail): unknown {
  return {
    rollout: snakeKeys(rollout),
    attempts: attempts.map(snakeKeys),
    calls: calls.map(snakeKeys),
    rewards: rewards.map(snakeKeys),
    batch,
  };
}

function style() {
  return styleFor(process.stdout.isTTY, process.env);
}
