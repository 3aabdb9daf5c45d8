import { Command } from "commander";
import { z } from "zod";
import { snakeKeys } from "#shared/wire.ts";
import { localEdge } from "../edge-access.ts";
import { stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { columns, minuteOf } from "../terminal/columns.ts";
import { styleFor } from "../terminal/style.ts";

const addFlagsSchema = z.object({ baseUrl: z.string(), keyEnv: z.string().optional(), stateDir: z.string() });
const listFlagsSchema = z.object({ json: z.boolean().default(false), stateDir: z.string() });
const flagsSchema = z.object({ stateDir: z.string() });

/** `fulgur providers`: frozen upstreams that agents' models may lead to. */
export function providersCommand(): Command {
  const command = new Command("providers").description("frozen upstreams: add, list and remove them");

  command
    .command("add")
    .description("add a frozen upstream, or change one; its key is taken from a variable, never from the command line")
    .argument("<name>", "what agents map their models to: provider:NAME/model")
    .requiredOption("--base-url <url>", "its address up to the dialect's path, such as https://api.openai.com/v1")
    .option("--key-env <name>", "the variable here (sent sealed), or of the edge, that holds its key")
    .addOption(stateDirFlag())
    .action(async (name: string, given: unknown) => {
      const { baseUrl, keyEnv, stateDir: folder } = addFlagsSchema.parse(given);
      const value = keyEnv === undefined ? undefined : process.env[keyEnv];
      const key = value === undefined || value === "" ? null : value;
      const { client } = await localEdge(stateDir(folder), "admin");
      const added = await client.putProvider(name, { baseUrl, keyEnv: keyEnv ?? null, key });
      console.log(`provider ${added.name} is at ${added.baseUrl}, ${KEY_WORDS[added.key](added.keyEnv ?? "")}`);
    });

  command
    .command("list")
    .description("list the frozen upstreams")
    .option("--json", "print JSON, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { json, stateDir: folder } = listFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(folder), "read");
      const providers = await client.listProviders();
      if (json) return console.log(JSON.stringify(providers.map(snakeKeys), null, 2));
      if (providers.length === 0) {
        return console.log("no providers yet; npx fulgur providers add NAME --base-url URL --key-env VAR adds one");
      }
      console.log(
        columns(
          ["PROVIDER", "BASE URL", "KEY", "CHANGED"],
          providers.map((one) => [
            one.name,
            one.baseUrl,
            KEY_WORDS[one.key](one.keyEnv ?? ""),
            minuteOf(one.updatedAt),
          ]),
          styleFor(process.stdout.isTTY, process.env),
        ),
      );
    });

  command
    .command("remove")
    .description("remove a frozen upstream that no agent uses")
    .argument("<name>")
    .addOption(stateDirFlag())
    .action(async (name: string, given: unknown) => {
      const { client } = await localEdge(stateDir(flagsSchema.parse(given).stateDir), "admin");
      await client.deleteProvider(name);
      console.log(`provider ${name} is removed`);
    });
  return command;
}

const KEY_WORDS = {
  sealed: () => "its key sealed in the store",
  env: (name: string) => `its key in the edge's variable ${name}`,
  none: () => "without a key",
} as const;
