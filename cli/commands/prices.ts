import { Command, Option } from "commander";
import { z } from "zod";
import { localEdge } from "../edge-access.ts";
import { amount, stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { pricesText } from "../terminal/usage-table.ts";
import { styleFor } from "../terminal/style.ts";

const listFlagsSchema = z.object({ json: z.boolean().default(false), stateDir: z.string() });
const setFlagsSchema = z.object({
  prompt: z.number(),
  completion: z.number(),
  from: z.string().optional(),
  stateDir: z.string(),
});

/** `fulgur prices` lists what models cost; `fulgur prices set` gives one a price from a day on. */
export function pricesCommand(): Command {
  const command = new Command("prices")
    .description("list what a million tokens of each model cost, and since when")
    .option("--json", "print JSON, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const flags = listFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(flags.stateDir), "read");
      const { prices } = await client.listPrices();
      console.log(
        flags.json ? JSON.stringify(prices, null, 2) : pricesText(prices, styleFor(process.stdout.isTTY, process.env)),
      );
    });

  command
    .command("set")
    .description("set a model's price from a UTC day on; earlier days keep theirs")
    .argument("<model>", "a policy's name, provider/model, or * for whatever has no price of its own")
    .addOption(new Option("--prompt <amount>", "for a million prompt tokens").makeOptionMandatory().argParser(amount))
    .addOption(
      new Option("--completion <amount>", "for a million completion tokens").makeOptionMandatory().argParser(amount),
    )
    .option("--from <day>", "such as 2026-11-21 (default: today)")
    .addOption(stateDirFlag())
    .action(async (model: string, _given: unknown, self: Command) => {
      const flags = setFlagsSchema.parse(self.optsWithGlobals());
      const { client } = await localEdge(stateDir(flags.stateDir), "admin");
      await client.putPrice({
        model,
        prompt_per_million: flags.prompt,
        completion_per_million: flags.completion,
        ...(flags.from === undefined ? {} : { from: flags.from }),
      });
      console.log(
        `${model} costs ${flags.prompt} / ${flags.completion} a million tokens from ${flags.from ?? "today"} on`,
      );
    });
  return command;
}
