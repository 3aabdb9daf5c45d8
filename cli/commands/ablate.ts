import { Command, InvalidArgumentError, Option } from "commander";
import { z } from "zod";
import { GRIDS, gridName, makeGrid } from "../ablate/grid.ts";
import { stateDirFlag, integer } from "../flags.ts";
import { TASK_NAMES } from "../local-tasks.ts";
import { DEFAULT_PORT_BASE } from "../ports.ts";
import { checkAlgorithm, givenSettings, trainerOptions } from "../trainer-flags.ts";

const gridNames = Object.keys(GRIDS) as [keyof typeof GRIDS];

const flagsSchema = z.looseObject({
  task: z.string(),
  grid: z.enum(gridNames).optional(),
  seeds: z.string(),
  name: z.string().optional(),
  portBase: z.number(),
  stateDir: z.string(),
});
export type AblateFlags = z.infer<typeof flagsSchema>;

/** `fulgur ablate`: the same training under several settings and seeds, side by side. */
export function ablateCommand(): Command {
  const command = new Command("ablate")
    .description("train under several settings and seeds, and compare; a flag with several values is an axis")
    .addOption(new Option("--task <name>", "what to train").choices(TASK_NAMES).default("flight"))
    .addOption(
      new Option("--grid <name>", `axes that have a name; flags given beside it take their place`).choices(gridNames),
    )
    .option("--seeds <list>", "seeds of each arm, with commas between", "1,2,3")
    .addOption(
      new Option(
        "--name <name>",
        "what it is called; the same name goes on with it (default: after its axes)",
      ).argParser(folderName),
    )
    .addOption(
      new Option("--port-base <port>", "the edge's port; inference and store take the next two")
        .default(DEFAULT_PORT_BASE)
        .argParser(integer(1024, 65_533)),
    )
    .addOption(stateDirFlag())
    .addHelpText(
      "after",
      [
        "",
        "Every training flag takes several values with commas between (but --roles, whose value is a list):",
        "  fulgur ablate --credit identical,discounted,air --group-size 4,8 --steps 12 --seeds 1,2,3",
        "  fulgur ablate --grid staleness --eval-tasks 128",
        ...Object.entries(GRIDS).map(
          ([name, axes]) =>
            `  --grid ${name.padEnd(10)} is ${Object.entries(axes)
              .map(([flag, values]) => `--${flag} ${values}`)
              .join(" ")}`,
        ),
      ].join("\n"),
    );
  for (const option of trainerOptions()) if (option.long !== "--seed") command.addOption(option);
  return command.action(async (given: unknown) => {
    const flags = flagsSchema.parse(given);
    const preset = flags.grid === undefined ? {} : GRIDS[flags.grid];
    const grid = makeGrid({ ...preset, ...givenSettings(flags) }, flags.seeds);
    for (const { settings } of grid.arms) await checkAlgorithm(settings);
    // Only now: what an installation is made of takes a second to load.
    const { ablate } = await import("../ablate/ablate.ts");
    await ablate({ flags, grid, name: flags.name ?? flags.grid ?? gridName(grid) });
    // Nothing that we started runs any more; an open handle of a library must not keep the terminal.
    process.exit();
  });
}

function folderName(text: string): string {
  if (/^[\w+.-]{1,100}$/.test(text) && !/^\.+$/.test(text)) return text;
  throw new InvalidArgumentError("It takes up to 100 letters, digits and _ + . -");
}
