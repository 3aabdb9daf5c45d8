/** The inference endpoint's settings, each with its default, bounds and unit. */

import { availableParallelism } from "node:os";
import { Command } from "commander";
import * as z from "zod";
import { FulgurError } from "#shared/errors.ts";

const whole = z.coerce.number().int();

/** Everything that can be set; command line flags have the same names in kebab-case. */
export const inferenceConfigSchema = z.strictObject({
  model: z.string().min(1).describe("Hugging Face folder of the base model"),
  servedModelName: z.string().min(1).default("base").describe("name of the base model"),
  adapterDir: z.string().optional().describe("folder in which NAME@N is looked for, as NAME/N"),
  host: z.string().default("127.0.0.1").describe("address to listen on"),
  port: whole.min(0).max(65_535).default(8788).describe("port to listen on; 0 takes a free one"),
  jwks: z
    .string()
    .min(1)
    .optional()
    .describe("file or URL of the keys whose tokens may ask; none: anybody (the default on a loopback address)"),
  precision: z
    .enum(["fp32", "int8"])
    .default("fp32")
    .describe("what linear layers are multiplied in; int8 is faster on models of 100 M weights and rounds"),
  threads: whole.min(1).max(256).default(Math.min(2, availableParallelism())).describe("decode threads"),
  maxSequences: whole.min(1).max(4096).default(64).describe("requests sampled at once"),
  maxWaiting: whole.min(0).max(100_000).default(1024).describe("requests that may wait; more get 429"),
  maxVersions: whole.min(1).max(1000).default(3).describe("versions kept loaded beside the base"),
  maxContextTokens: whole.min(16).max(131_072).default(8192).describe("longest sequence, at most the model's own"),
  prefixCacheMb: whole.min(0).max(65_536).default(64).describe("MiB of reusable prompt prefixes for each version"),
  continuationTokens: whole
    .min(0)
    .max(1_000_000_000)
    .default(8_000_000)
    .describe("tokens of answers and their prompts kept to continue conversations from; 0 renders every turn anew"),
  prefillTokensPerStep: whole.min(1).max(65_536).default(128).describe("prompt tokens read between two decode steps"),
  maxBodyMb: z.coerce.number().positive().max(1024).default(8).describe("MiB of a request's body"),
  drainSeconds: z.coerce.number().min(0).max(600).default(30).describe("seconds that running answers get at the end"),
});

/** What linear layers are multiplied in. */
export type ServePrecision = z.infer<typeof inferenceConfigSchema.shape.precision>;

/** Parsed settings. */
export type InferenceConfig = z.infer<typeof inferenceConfigSchema>;

/**
 * Parses settings given as an object.
 * @throws FulgurError ERR_CONFIG that names the first field at fault
 */
export function parseInferenceConfig(given: unknown): InferenceConfig {
  const parsed = inferenceConfigSchema.safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const field = issue?.path.join(".") ?? "";
  throw new FulgurError(
    "ERR_CONFIG",
    `${field === "" ? "Settings" : `--${kebab(field)}`}: ${issue?.message ?? "invalid"}. See --help.`,
  );
}

/**
 * Parses a command line; `--help` prints the flags and ends the process.
 * @param argv arguments after the script's name
 * @throws FulgurError ERR_CONFIG
 */
export function parseInferenceArguments(argv: readonly string[]): InferenceConfig {
  const command = new Command("inference").description("Serves a model and its policy versions in the vLLM dialect.");
  for (const [name, field] of Object.entries(inferenceConfigSchema.shape)) {
    const fallback = field.safeParse(undefined).data;
    const help = `${field.description ?? ""}${fallback === undefined ? "" : ` (default ${fallback})`}`;
    command.option(`--${kebab(name)} <value>`, help);
  }
  command.exitOverride((error) => {
    if (error.code === "commander.helpDisplayed") process.exit(0);
    throw new FulgurError("ERR_CONFIG", `${error.message.replace(/^error: /, "")}. See --help.`);
  });
  command.configureOutput({ writeErr: () => {} });
  command.parse([...argv], { from: "user" });
  return parseInferenceConfig(command.opts());
}

function kebab(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}
