import { join, resolve } from "node:path";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { algorithmSchema, DEFAULT_PRESET, PRESETS, type Algorithm } from "./algorithm.ts";
import { creditSchema } from "./credit/credit.ts";
import type { OnnxEngineOptions } from "./engine/options.ts";

/** The trainer's configuration: parsed once, in main.ts, from flags that bear the fields' names (`--group-size 8`). */

const PRESET_NAMES = Object.keys(PRESETS) as [keyof typeof PRESETS];
const url = (fallback: string, what: string) => z.url().default(fallback).describe(what);

export const trainerConfigSchema = z.strictObject({
  run: z.string().min(1).max(100).describe("id of the run; a run that exists is resumed"),
  tenant: z.string().min(1).default("default").describe("tenant that owns the run"),
  agent: z.string().min(1).default("flight").describe("agent that makes the rollouts"),
  policy: z.string().min(1).default("flight").describe("policy that is trained"),
  edgeUrl: url("http://127.0.0.1:8787", "where the edge listens"),
  inferenceUrl: url("http://127.0.0.1:8788", "where inference listens"),
  storeUrl: url("http://127.0.0.1:8789", "where the store listens"),
  stateDir: z.string().min(1).default(".fulgur").describe("folder of keys, policies, checkpoints and summaries"),

  steps: z.int().min(0).max(1_000_000).default(24).describe("optimizer steps of the whole run"),
  seed: z.int().min(0).max(2_147_483_647).default(1).describe("of the order of tasks and the adapter's start"),
  roles: z
    .string()
    .regex(/^[^,\s]+(,[^,\s]+)*$/, "wanted roles with commas between, such as main,rewriter")
    .optional()
    .describe("roles of the agent's calls that are trained, with commas between; the others are frozen (default: all)"),
  groups: z.int().min(1).max(1000).default(16).describe("tasks in a batch"),
  groupSize: z.int().min(2).max(256).default(8).describe("rollouts of each task"),
  maxAttempts: z.int().min(1).max(10).default(3).describe("tries at a rollout whose infrastructure fails"),
  maxStaleness: z
    .int()
    .min(0)
    .max(16)
    .default(1)
    .describe("versions that a sample may be behind; 0 is strictly on-policy"),
  sync: z
    .union([z.boolean(), z.stringbool()])
    .default(false)
    .describe("the same as --max-staleness 0: generate, train, generate"),
  whenStale: z
    .enum(["wait", "discard"])
    .default("wait")
    .describe("wait for old rollouts before training newer ones, or train on and drop the old"),
  refillGroups: z
    .int()
    .min(0)
    .max(1000)
    .default(8)
    .describe("groups that may replace those without a spread, each step"),

  algorithm: z
    .enum(PRESET_NAMES)
    .default(DEFAULT_PRESET)
    .describe("advantage, surrogate and aggregation (docs/ALGORITHMS.md)"),
  credit: z.enum(["identical", "discounted", "air"]).optional().describe("credit in place of the algorithm's"),
  klCoefficient: z.number().min(0).max(10).optional().describe("KL to the start in place of the algorithm's, per nat"),
  entropyBonus: z.number().min(0).max(10).optional().describe("entropy bonus in place of the algorithm's, per nat"),
  updatesPerBatch: z.int().min(1).max(64).default(1).describe("optimizer updates that share a batch's groups"),
  method: z.enum(["lora", "full"]).default("lora").describe("adapter on all linear layers, or all weights"),
  loraRank: z.int().min(1).max(512).default(16).describe("rank of the adapter"),
  loraAlpha: z.number().positive().max(4096).default(32).describe("the adapter is scaled by alpha / rank"),
  learningRate: z.number().positive().max(1).default(1e-3).describe("AdamW's, at its highest"),
  learningRateSchedule: z
    .enum(["constant", "linear"])
    .default("constant")
    .describe("linear falls to 0 at the last step"),
  maxGradNorm: z.number().positive().default(1).describe("gradients are scaled down to this norm"),
  temperature: z.number().positive().max(10).default(1).describe("at which the agent samples"),
  threads: z.int().min(1).max(256).default(1).describe("CPU threads of the training engine"),

  evalTasks: z.int().min(0).max(100_000).default(512).describe("held-out rollouts before and after; 0 skips both"),
  watchFirstTool: z.string().min(1).default("memory").describe("tool whose share of first calls is reported"),
  keepCheckpoints: z.int().min(1).max(1000).default(2).describe("newest checkpoints that are kept"),
  final: z
    .enum(["last", "best"])
    .default("last")
    .describe("version that is evaluated and routed at the end: the last, or the one whose rollouts earned most"),
  pollMs: z.int().min(10).max(60_000).default(150).describe("milliseconds between looks at the store"),
  wedgeMinutes: z.number().positive().max(1440).default(10).describe("minutes without any progress that end the run"),
});
export type TrainerConfig = z.infer<typeof trainerConfigSchema>;

/** The algorithm that a configuration asks for: its preset with the fields that were given in place of the preset's. */
export function algorithmOf(config: TrainerConfig): Algorithm {
  const preset = PRESETS[config.algorithm];
  return algorithmSchema.parse({
    advantage: preset.advantage,
    credit:
      config.credit === undefined
        ? preset.credit
        : creditSchema.parse({ type: config.credit, overlong: preset.credit.overlong }),
    loss: {
      ...preset.loss,
      ...(config.klCoefficient === undefined ? {} : { klCoefficient: config.klCoefficient }),
      ...(config.entropyBonus === undefined ? {} : { entropyBonus: config.entropyBonus }),
    },
  });
}

/** The roles whose calls are trained on; undefined is all. */
export function trainedRoles({ roles }: Pick<TrainerConfig, "roles">): readonly string[] | undefined {
  return roles?.split(",");
}

/** How many versions a sample may be behind; `sync` is its other name for 0. */
export function stalenessBound(config: TrainerConfig): number {
  return config.sync ? 0 : config.maxStaleness;
}

/** The engine's options for training a model folder under a configuration. */
export function engineOptions(config: TrainerConfig, modelDir: string): OnnxEngineOptions {
  const { method, loraRank: rank, loraAlpha: alpha, seed, temperature, threads } = config;
  return {
    modelDir,
    method: method === "lora" ? { type: "lora", rank, alpha, seed } : { type: "full" },
    temperature,
    threads,
  };
}

/** Where a run keeps its files. */
export interface RunPaths {
  readonly run: string;
  readonly checkpoints: string;
  readonly summary: string;
  /** Versions of the policy, one folder each. */
  readonly versions: string;
}

export function runPaths({ stateDir, run, policy }: TrainerConfig): RunPaths {
  // Absolute: inference and trainer need not share a working directory.
  const root = resolve(stateDir);
  const dir = join(root, "runs", run);
  return {
    run: dir,
    checkpoints: join(dir, "checkpoints"),
    summary: join(dir, "summary.json"),
    versions: join(root, "policies", policy),
  };
}

/** The learning rate of a step, counted from 0. */
export function learningRateAt(config: TrainerConfig, step: number): number {
  return config.learningRateSchedule === "constant"
    ? config.learningRate
    : config.learningRate * (1 - step / Math.max(1, config.steps));
}

/**
 * The configuration of command-line words.
 * @throws FulgurError ERR_CONFIG naming the flag, what was wanted and what came
 */
export function parseFlags(argv: readonly string[]): TrainerConfig {
  const fields = new Map(Object.keys(trainerConfigSchema.shape).map((name) => [flagOf(name), name]));
  const given: Record<string, unknown> = {};
  for (let at = 0; at < argv.length; at += 1) {
    const word = argv[at] ?? "";
    const [flag = "", inline] = word.split(/=(.*)/s);
    const name = fields.get(flag);
    if (name === undefined) throw new FulgurError("ERR_CONFIG", `there is no flag ${flag}; see --help`);
    const next = argv[at + 1];
    if (inline !== undefined) given[name] = inline;
    else if (name === "sync" && (next === undefined || next.startsWith("--"))) given[name] = "true";
    else if (next === undefined) throw new FulgurError("ERR_CONFIG", `${flag} wants a value; see --help`);
    else {
      given[name] = next;
      at += 1;
    }
    given[name] = numberWhereWanted(name, String(given[name]));
  }
  const parsed = trainerConfigSchema.safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const name = String(issue?.path[0] ?? "");
  const came = given[name] === undefined ? "nothing" : JSON.stringify(given[name]);
  throw new FulgurError("ERR_CONFIG", `${flagOf(name)}: ${issue?.message ?? "invalid"}, ${came} came; see --help`);
}

/** What `--help` prints: every flag with its default and meaning. */
export function helpText(): string {
  const rows = Object.entries(trainerConfigSchema.shape).map(([name, field]) => {
    const fallback = field.safeParse(undefined);
    const initial = fallback.success && fallback.data !== undefined ? ` (default ${String(fallback.data)})` : "";
    return `  ${flagOf(name).padEnd(26)} ${field.description ?? ""}${initial}`;
  });
  return `Usage: node trainer/main.ts --run ID [flags]\n\n${rows.join("\n")}\n\nThe store's read token is taken from FULGUR_STORE_TOKEN, a static key for inference from FULGUR_INFERENCE_KEY.\n`;
}

function flagOf(name: string): string {
  return `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/** Flags are text; a field whose schema refuses text takes the number that the text is. */
function numberWhereWanted(name: string, text: string): unknown {
  const field = Object.entries(trainerConfigSchema.shape).find(([each]) => each === name)?.[1];
  const isText = field?.safeParse(text).success === true;
  return isText || text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
}
