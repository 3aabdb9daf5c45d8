import { createHash } from "node:crypto";
import { FulgurError } from "#shared/errors.ts";
import { PRESETS } from "../../trainer/algorithm.ts";
import type { RunSettings } from "../run-choice.ts";
import { checkSettings } from "../trainer-flags.ts";

/** An ablation's grid: which settings are compared, and the runs that this takes. */

/** Settings that are compared with the others; each seed runs them once. */
export interface Arm {
  /** What tells it from the others: `credit air, group-size 4`; `as given` where it is alone. */
  readonly name: string;
  /** Without the seed. */
  readonly settings: RunSettings;
}

/** One run. */
export interface Cell {
  readonly arm: Arm;
  readonly seed: string;
  /** With the seed. */
  readonly settings: RunSettings;
  /** Says all of its settings, so that it is found again whatever grid it is a part of. */
  readonly folder: string;
}

export interface Grid {
  readonly arms: readonly Arm[];
  /** Seed by seed, so that an ablation that is stopped early has compared all of its arms. */
  readonly cells: readonly Cell[];
  /** Flags that have several values. */
  readonly axes: Readonly<Record<string, readonly string[]>>;
  /** Flags that have one. */
  readonly fixed: RunSettings;
}

/** Grids that have a name. */
export const GRIDS = {
  credit: { credit: "identical,discounted,air" },
  // Their defaults differ.
  algorithm: { algorithm: Object.keys(PRESETS).join(","), "max-staleness": "1" },
  "group-size": { "group-size": "4,8,16" },
  staleness: { "max-staleness": "0,1,4", importance: "truncated,none" },
  kl: { "kl-coefficient": "0,0.001,0.04" },
} as const satisfies Record<string, RunSettings>;
export type GridName = keyof typeof GRIDS;

/** Flags whose value may have commas of its own: they cannot be axes. */
const LISTS = new Set(["roles"]);

/**
 * Every combination of the flags' values, in the order in which they were given, once for each seed.
 * @param given flags of the trainer without the seed, several values with commas between: `{ credit: "identical,air" }`
 * @param seeds with commas between
 * @throws FulgurError ERR_CONFIG naming the flag whose value is empty or that the trainer refuses
 */
export function makeGrid(given: RunSettings, seeds: string): Grid {
  const values = Object.entries(given).map(
    ([name, value]) => [name, value === true || LISTS.has(name) ? [value] : valuesOf(name, value)] as const,
  );
  const several = values.filter(([, each]) => each.length > 1);
  const fixed = Object.fromEntries(
    values.flatMap(([name, [only, ...more]]) => (more.length > 0 || only === undefined ? [] : [[name, only]])),
  );
  const axes = Object.fromEntries(several.map(([name, each]) => [name, each.map(String)]));
  const arms = several
    .reduce<RunSettings[]>(
      (combinations, [name, each]) =>
        combinations.flatMap((settings) => each.map((value) => ({ ...settings, [name]: value }))),
      [{}],
    )
    .map((chosen) => ({ name: armName(chosen), settings: { ...fixed, ...chosen } }));
  if (!/^ *\d+ *(, *\d+ *)*$/.test(seeds)) {
    throw new FulgurError(
      "ERR_CONFIG",
      `--seeds wants whole numbers with commas between, ${JSON.stringify(seeds)} came`,
    );
  }
  const cells = valuesOf("seeds", seeds).flatMap((seed) => arms.map((arm) => cellOf(arm, seed)));
  for (const { settings } of cells) checkSettings(settings);
  return { arms, cells, axes, fixed };
}

/** What an ablation is called where it was given no name: the flags that it compares. */
export function gridName({ axes }: Pick<Grid, "axes">): string {
  return Object.keys(axes).join("+") || "one";
}

function valuesOf(name: string, text: string): string[] {
  const values = text.split(",").map((value) => value.trim());
  if (values.includes("")) {
    throw new FulgurError("ERR_CONFIG", `--${name} wants values with commas between, ${JSON.stringify(text)} came`);
  }
  return [...new Set(values)];
}

function armName(chosen: RunSettings): string {
  const words = Object.entries(chosen).map(([name, value]) => `${name} ${shortened(String(value))}`);
  return words.length === 0 ? "as given" : words.join(", ");
}

/** A module by its file's name. */
function shortened(value: string): string {
  return value.split(/[/\\]/).at(-1) ?? value;
}

function cellOf(arm: Arm, seed: string): Cell {
  const settings = { ...arm.settings, seed };
  const said = Object.entries(settings)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => `${name}=${value}`)
    .join(",");
  // A path may not be a folder's name, and a name has 255 bytes: such a cell is known by its hash.
  const isName = said.length <= 120 && /^[\w.,=+-]+$/.test(said);
  return { arm, seed, settings, folder: isName ? said : createHash("sha256").update(said).digest("hex").slice(0, 24) };
}
