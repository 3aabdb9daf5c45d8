import { Command, Option } from "commander";
import { z } from "zod";
import { urlListTextSchema } from "#shared/url-list.ts";
import { integer, stateDirFlag, urlList } from "../flags.ts";
import { TASK_NAMES } from "../local-tasks.ts";
import { DEFAULT_PORT_BASE } from "../ports.ts";
import { trainerOptions } from "../trainer-flags.ts";

const flagsSchema = z.looseObject({
  task: z.string(),
  train: z.boolean(),
  exit: z.boolean().default(false),
  new: z.boolean().default(false),
  portBase: z.number(),
  shards: z.number().optional(),
  inference: urlListTextSchema.optional(),
  stateDir: z.string(),
});
export type StartFlags = z.infer<typeof flagsSchema>;

/** `fulgur start`: runs the whole installation in one terminal and trains the task's agent. */
export function startCommand(): Command {
  const command = new Command("start")
    .description("start store, inference, edge, agents and trainer, and train the task's agent")
    .addOption(new Option("--task <name>", "what to train").choices(TASK_NAMES).default("flight"))
    .option("--no-train", "serve only")
    .option("--exit", "end after the table instead of serving on")
    .option("--new", "begin a new run, whatever became of the last one")
    .addOption(
      new Option("--port-base <port>", "the edge's port; inference and the store's shards take the next ones")
        .default(DEFAULT_PORT_BASE)
        .argParser(integer(1024, 65_533)),
    )
    .addOption(
      new Option(
        "--shards <n>",
        "databases to spread tenants over (default: as many as there are, at first one)",
      ).argParser(integer(1, 64)),
    )
    .addOption(
      new Option(
        "--inference <urls>",
        "servers that run elsewhere, vLLM's or built-in ones, with commas between (docs/FLEET.md; default: one of its own)",
      ).argParser(urlList),
    )
    .addOption(stateDirFlag());
  for (const option of trainerOptions()) command.addOption(option);
  return command.action(async (given: unknown) => {
    // Only now: what an installation is made of takes a second to load, and the other commands need none of it.
    const { start } = await import("../start.ts");
    await start(flagsSchema.parse(given));
    // Nothing that we started runs any more; an open handle of a library must not keep the terminal.
    process.exit();
  });
}
