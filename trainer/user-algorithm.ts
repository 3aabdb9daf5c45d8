import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { z } from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { advantageSchema } from "./advantage/advantage.ts";
import type { AdvantageFunction } from "./advantage/custom.ts";
import { algorithmSchema, type Algorithm } from "./algorithm.ts";
import { creditSchema } from "./credit/credit.ts";
import type { CreditFunction } from "./credit/custom.ts";
import type { TokenLoss } from "./loss/custom.ts";
import { lossSchema } from "./loss/loss.ts";

/**
 * What a module that `--algorithm ./mine.ts` names exports as its default: a function for each part that is its own,
 * the settings of one of ours for each that is not. A part that is left out is `identical`, `group-mean`, `ppo-clip`.
 *
 * Functions must be pure: a run that is resumed calls them again, and evaluations of an ablation compare their results.
 */
export interface UserAlgorithm {
  readonly credit?: CreditFunction | z.input<typeof creditSchema>;
  readonly advantage?: AdvantageFunction | z.input<typeof advantageSchema>;
  /** A function alone has every other setting at its default; `{ type: "custom", term, aggregation, … }` says them. */
  readonly loss?: TokenLoss | z.input<typeof lossSchema>;
}

const isFunction = (value: unknown): boolean => typeof value === "function";

const userSchema = z.strictObject({
  credit: partOf(creditSchema, (compute) => ({ type: "custom", compute })),
  advantage: partOf(advantageSchema, (compute) => ({ type: "custom", compute })),
  loss: partOf(lossSchema, (term) => ({ type: "custom", term })),
});

/** By absolute path; kept for the process, as `import` itself keeps a module. */
const loaded = new Map<string, Algorithm>();

/** A path is told from a preset's name by its slash or its ending. */
export function isModulePath(name: string): boolean {
  return /[/\\]|\.[cm]?[jt]s$/.test(name);
}

/**
 * Loads a user's module, so that {@link userAlgorithm} knows it. Repeatable.
 * @param path as the command line has it, from the working directory
 * @throws FulgurError ERR_CONFIG naming what is wrong with the module
 */
export async function loadUserAlgorithm(path: string): Promise<Algorithm> {
  const file = resolve(path);
  const known = loaded.get(file);
  if (known !== undefined) return known;
  if (!existsSync(file)) throw new FulgurError("ERR_CONFIG", `--algorithm ${path}: there is no file ${file}`);
  let module: unknown;
  try {
    module = await import(pathToFileURL(file).href);
  } catch (cause) {
    throw new FulgurError("ERR_CONFIG", `--algorithm ${path} could not be loaded: ${messageOf(cause)}`, { cause });
  }
  const algorithm = parseUserAlgorithm(z.looseObject({}).parse(module)["default"], path);
  loaded.set(file, algorithm);
  return algorithm;
}

/** @throws FulgurError ERR_CONFIG when the module has not been loaded */
export function userAlgorithm(path: string): Algorithm {
  const found = loaded.get(resolve(path));
  if (found === undefined) throw new FulgurError("ERR_CONFIG", `--algorithm ${path} has not been loaded`);
  return found;
}

/** @throws FulgurError ERR_CONFIG naming the part and what was wanted of it */
export function parseUserAlgorithm(given: unknown, path: string): Algorithm {
  const parsed = userSchema.safeParse(given);
  if (parsed.success) return algorithmSchema.parse(parsed.data);
  const [issue] = parsed.error.issues;
  const where = issue?.path.length ? `${issue.path.join(".")}: ` : "";
  throw new FulgurError(
    "ERR_CONFIG",
    `--algorithm ${path}: the module is to export default { credit?, advantage?, loss? }, each a function or settings: ${where}${issue?.message ?? "invalid"}`,
  );
}

/** A part as the schema has it; a function becomes the schema's `custom`. */
function partOf<Schema extends z.ZodType>(schema: Schema, custom: (own: unknown) => unknown) {
  return z.preprocess((value) => (isFunction(value) ? custom(value) : value), schema).optional();
}
