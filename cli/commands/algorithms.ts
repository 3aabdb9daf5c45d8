import { Command } from "commander";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { needsCritic } from "../../trainer/advantage/advantage.ts";
import { DEFAULT_PRESET, PRESETS, type Preset } from "../../trainer/algorithm.ts";
import { algorithmsText, algorithmText, type NamedAlgorithm } from "../terminal/algorithms-table.ts";
import { styleFor } from "../terminal/style.ts";

const flagsSchema = z.object({ json: z.boolean().default(false) });

/** `fulgur algorithms [NAME]`: what `--algorithm` takes, what each is and when to choose it. Nothing need be running. */
export function algorithmsCommand(): Command {
  return new Command("algorithms")
    .description("list the training algorithms and when to choose which")
    .argument("[name]", "one of them, in full")
    .option("--json", "print JSON")
    .action((name: string | undefined, given: unknown) => {
      const { json } = flagsSchema.parse(given);
      const style = styleFor(process.stdout.isTTY, process.env);
      if (name === undefined) {
        const all = namedAlgorithms();
        console.log(json ? JSON.stringify(all.map(algorithmJson), null, 2) : algorithmsText(all, style));
      } else {
        const algorithm = algorithmNamed(name);
        console.log(json ? JSON.stringify(algorithmJson(algorithm), null, 2) : algorithmText(algorithm, style));
      }
    });
}

/** Every preset with its name, the default first. */
export function namedAlgorithms(): NamedAlgorithm[] {
  return Object.entries<Preset>(PRESETS)
    .map(([name, preset]) => ({ name, isDefault: name === DEFAULT_PRESET, ...preset }))
    .toSorted((a, b) => Number(b.isDefault) - Number(a.isDefault));
}

/** @throws FulgurError ERR_CONFIG with the names that there are */
export function algorithmNamed(name: string): NamedAlgorithm {
  const all = namedAlgorithms();
  const found = all.find((each) => each.name === name);
  if (found !== undefined) return found;
  throw new FulgurError(
    "ERR_CONFIG",
    `there is no algorithm ${name}; there are ${all.map((each) => each.name).join(", ")}`,
  );
}

/** An algorithm for programs: its notes, and its three choices with every setting. */
export function algorithmJson({ name, isDefault, notes, credit, advantage, loss }: NamedAlgorithm): unknown {
  return snake({ name, isDefault, ...notes, needsCritic: needsCritic(advantage), credit, advantage, loss });
}

/** Keys in snake_case, at every depth; values as they are. */
function snake(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, field]) => [
      key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      snake(field),
    ]),
  );
}
