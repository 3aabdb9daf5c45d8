import { resolve } from "node:path";
import { Option } from "commander";
import { z } from "zod";
import {
  algorithmOf,
  flagTexts,
  parseFlags,
  SWITCHES,
  trainerConfigSchema,
  type TrainerConfig,
} from "../trainer/config.ts";
import { isModulePath, loadUserAlgorithm } from "../trainer/user-algorithm.ts";
import type { RunSettings } from "./run-choice.ts";

/** The trainer's flags as `fulgur start` takes them: all of its fields, except those that the installation decides. */

const DECIDED = new Set([
  "run",
  "tenant",
  "policy",
  "edgeUrl",
  "inferenceUrl",
  "storeUrl",
  "stateDir",
  "watchFirstTool",
]);

const fields = Object.entries(trainerConfigSchema.shape).filter(([name]) => !DECIDED.has(name));

/** One option for each field, with what the trainer's own help says of it. */
export function trainerOptions(): Option[] {
  return flagTexts()
    .filter(({ name }) => !DECIDED.has(name))
    .map(({ name, flag, text }) =>
      new Option(SWITCHES.has(name) ? flag : `${flag} <value>`, text).helpGroup("Training:"),
    );
}

/** Those that were given, by flag name. */
export function givenSettings(flags: Readonly<Record<string, unknown>>): RunSettings {
  return Object.fromEntries(
    fields.flatMap(([name]) => {
      const value = flags[name];
      if (value === undefined) return [];
      const text = value === true ? true : z.string().parse(value);
      return [[kebab(name), name === "algorithm" && text !== true ? absoluteModules(text) : text]];
    }),
  );
}

/** A module's path stays the same one when the run is resumed from another folder. */
function absoluteModules(names: string): string {
  const absolute = (name: string): string => (isModulePath(name) ? resolve(name) : name);
  return names.split(",").map(absolute).join(",");
}

/** Settings as words of the trainer's command line. */
export function settingsArgs(settings: RunSettings): string[] {
  return Object.entries(settings).flatMap(([name, value]) => (value === true ? [`--${name}`] : [`--${name}`, value]));
}

/**
 * As {@link checkSettings}, with the algorithm's module, if it is one: its mistakes are told before anything starts.
 * @throws FulgurError ERR_CONFIG naming the flag
 */
export async function checkAlgorithm(settings: RunSettings): Promise<void> {
  const config = checkSettings(settings);
  if (isModulePath(config.algorithm)) await loadUserAlgorithm(config.algorithm);
  algorithmOf(config);
}

/**
 * The trainer's configuration under these settings, so that a bad value is told before anything starts.
 * @throws FulgurError ERR_CONFIG naming the flag
 */
export function checkSettings(settings: RunSettings): TrainerConfig {
  return parseFlags(["--run", "check", ...settingsArgs(settings)]);
}

function kebab(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}
