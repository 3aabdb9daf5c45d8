import { readFile } from "node:fs/promises";
import { Command, InvalidArgumentError } from "commander";
import { z } from "zod";
import { modelTargetSchema } from "#shared/agent-settings.ts";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { agentInputSchema } from "#shared/wire-access.ts";
import { snakeKeys } from "#shared/wire.ts";
import { localEdge } from "../edge-access.ts";
import { stateDirFlag } from "../flags.ts";
import { stateDir } from "../state.ts";
import { columns } from "../terminal/columns.ts";
import { styleFor } from "../terminal/style.ts";

const listFlagsSchema = z.object({ json: z.boolean().default(false), stateDir: z.string() });
const flagsSchema = z.object({ stateDir: z.string() });

/** `fulgur agents`: which model names of an agent lead to which policy or provider. */
export function agentsCommand(): Command {
  const command = new Command("agents").description("agents and where their model names lead");

  command
    .command("map")
    .description("lead model names of an agent to a policy or a provider; the agent is made where there is none")
    .argument("<agent>")
    .argument(
      "<mappings...>",
      "MODEL=policy:NAME or MODEL=provider:NAME/MODEL; * is any other model",
      (text: string, before: readonly Mapping[] | undefined) => [...(before ?? []), parseMapping(text)],
    )
    .addOption(stateDirFlag())
    .action(async (agent: string, mappings: readonly Mapping[], given: unknown) => {
      const { client } = await localEdge(stateDir(flagsSchema.parse(given).stateDir), "admin");
      const mapped = await client.mapModels(agent, Object.fromEntries(mappings));
      for (const [model, target] of Object.entries(mapped.settings.models))
        console.log(`${agent}  ${model} → ${target}`);
    });

  command
    .command("set")
    .description("give an agent its settings: where it runs, its tools and their weights, its evaluator, its limits")
    .argument("<agent>")
    .argument("<settings>", 'as JSON, or the path of a JSON file, such as \'{"url": "https://…", "policy": "flight"}\'')
    .addOption(stateDirFlag())
    .action(async (agent: string, settings: string, given: unknown) => {
      const folder = flagsSchema.parse(given).stateDir;
      const checked = agentInputSchema.safeParse(await jsonFrom(settings));
      if (!checked.success) {
        const [issue] = checked.error.issues;
        throw new FulgurError(
          "ERR_CONFIG",
          `the settings' ${issue?.path.join(".") || "JSON"} is not usable: ${issue?.message ?? "unknown"}`,
        );
      }
      const { client } = await localEdge(stateDir(folder), "admin");
      console.log(JSON.stringify(snakeKeys(await client.putAgent(agent, checked.data)), null, 2));
    });

  command
    .command("list")
    .description("list the agents")
    .option("--json", "print JSON, as the edge gives it")
    .addOption(stateDirFlag())
    .action(async (given: unknown) => {
      const { json, stateDir: folder } = listFlagsSchema.parse(given);
      const { client } = await localEdge(stateDir(folder), "read");
      const agents = await client.listAgents();
      if (json) return console.log(JSON.stringify(agents.map(snakeKeys), null, 2));
      if (agents.length === 0)
        return console.log("no agents yet; npx fulgur agents map NAME '*=policy:flight' makes one");
      console.log(
        columns(
          ["AGENT", "RUNS AT", "MODELS", "SET UP"],
          agents.map(({ name, settings, source }) => [
            name,
            settings.binding ?? settings.url ?? "itself",
            Object.entries(settings.models)
              .map(([model, target]) => `${model} → ${target}`)
              .join(", "),
            source === "both" ? "deployed, changed since" : source,
          ]),
          styleFor(process.stdout.isTTY, process.env),
        ),
      );
    });

  command
    .command("show")
    .description("print an agent's settings as JSON")
    .argument("<agent>")
    .addOption(stateDirFlag())
    .action(async (agent: string, given: unknown) => {
      const { client } = await localEdge(stateDir(flagsSchema.parse(given).stateDir), "read");
      console.log(JSON.stringify(snakeKeys(await client.readAgent(agent)), null, 2));
    });

  command
    .command("remove")
    .description("remove what is stored of an agent; one that was deployed with the edge is as it was then")
    .argument("<agent>")
    .addOption(stateDirFlag())
    .action(async (agent: string, given: unknown) => {
      const { client } = await localEdge(stateDir(flagsSchema.parse(given).stateDir), "admin");
      await client.deleteAgent(agent);
      console.log(`what was stored of agent ${agent} is removed`);
    });
  return command;
}

type Mapping = readonly [model: string, target: string];

/** A model's name may hold `=` and `:`; what follows the last `=policy:` or `=provider:` is where it leads. */
function parseMapping(text: string): Mapping {
  const [, model, target] = /^(.+)=((?:policy|provider):.*)$/.exec(text) ?? [];
  if (model !== undefined && target !== undefined && modelTargetSchema.safeParse(target).success)
    return [model, target];
  throw new InvalidArgumentError(`"${text}" is not MODEL=policy:NAME or MODEL=provider:NAME/MODEL.`);
}

async function jsonFrom(text: string): Promise<unknown> {
  try {
    return JSON.parse(text.trimStart().startsWith("{") ? text : await readFile(text, "utf8"));
  } catch (cause) {
    throw new FulgurError("ERR_CONFIG", `the settings are neither JSON nor a file of JSON: ${messageOf(cause)}`, {
      cause,
    });
  }
}
