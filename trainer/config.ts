import { join, resolve } from "node:path";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { urlListTextSchema } from "#shared/url-list.ts";
import { DEFAULT_TENANT, qualified } from "#shared/words.ts";
import { groupAdvantage, needsCritic } from "./advantage/advantage.ts";
import { algorithmSchema, DEFAULT_PRESET, PRESETS, type Algorithm } from "./algorithm.ts";
import { algorithmFlags, withFlags } from "./algorithm-flags.ts";
import { checkEngineFlags, engineFlags } from "./engine-flags.ts";
import type { OnnxEngineOptions } from "./engine/options.ts";
import { flagHelp, wanted } from "./flag-text.ts";
import { needsBehaviour } from "./loss/loss.ts";
import { isModulePath, userAlgorithm } from "./user-algorithm.ts";

/** The trainer's configuration: parsed once, in main.ts, from flags that bear the fields' names (`--group-size 8`). */

/** Flags that may stand without a value. */
export const SWITCHES: ReadonlySet<string> = new Set(["sync", "live", "pauseOnAlarm", "gradientCheckpointing"]);
const flagSwitch = z.union([z.boolean(), z.stringbool()]).default(false);

/** What live traffic wants where nothing else was given. */
const LIVE_DEFAULTS = { from: "routed", groupSize: 1, lone: "ema", steps: 1000, evalTasks: 0 } as const;

/** The other algorithms' curves are of samples one version old; of lightning alone it is known that four do no harm. */
const OTHER_ALGORITHM_DEFAULTS = { maxStaleness: 1 } as const;

const url = (fallback: string, what: string) => z.url().default(fallback).describe(what);

export const trainerConfigSchema = z.strictObject({
  run: z.string().min(1).max(100).describe("id of the run; a run that exists is resumed"),
  tenant: z.string().min(1).default(DEFAULT_TENANT).describe("tenant that owns the run"),
  agent: z.string().min(1).default("flight").describe("agent that makes the rollouts"),
  policy: z.string().min(1).default("flight").describe("policy that is trained"),
  edgeUrl: url("http://127.0.0.1:8787", "where the edge listens"),
  inferenceUrl: urlListTextSchema
    .default("http://127.0.0.1:8788")
    .describe("where inference listens; several servers with commas between"),
  storeUrl: url("http://127.0.0.1:8789", "where the store listens"),
  stateDir: z.string().min(1).default(".fulgur").describe("folder of keys, policies, checkpoints and summaries"),

  live: flagSwitch.describe(
    "train on the agent's live traffic that has a reward, in place of rollouts of the run's own (docs/GATEWAY.md)",
  ),
  liveHours: z
    .number()
    .positive()
    .max(24 * 90)
    .default(168)
    .describe("hours back from now within which a live rollout began"),
  from: z
    .enum(["base", "routed"])
    .default("base")
    .describe("version that a new run begins at: the base, which is 0, or the routed one, as with --live"),

  steps: z.int().min(0).max(1_000_000).default(24).describe("optimizer steps of the whole run; with --live 1000"),
  seed: z.int().min(0).max(2_147_483_647).default(1).describe("seed of the order of tasks and of the adapter's start"),
  roles: z
    .string()
    .regex(/^[^,\s]+(,[^,\s]+)*$/, "wanted roles with commas between, such as main,rewriter")
    .optional()
    .describe("roles of the agent's calls that are trained, with commas between; the others are frozen (default: all)"),
  groups: z.int().min(1).max(1000).default(16).describe("tasks in a batch"),
  groupSize: z
    .int()
    .min(1)
    .max(256)
    .default(8)
    .describe("rollouts of each task; with --live 1, and more are so many sessions in a row"),
  lone: z
    .enum(["ema", "batch"])
    .optional()
    .describe(
      "what a rollout that is alone in its group is compared with, a moving average or its batch (default: nothing, it is dropped; with --live ema)",
    ),
  maxAttempts: z.int().min(1).max(10).default(3).describe("tries at a rollout whose infrastructure fails"),
  maxStaleness: z
    .int()
    .min(0)
    .max(16)
    .default(4)
    .describe("versions that a sample may be behind; 0 is strictly on-policy; with another algorithm than lightning 1"),
  sync: flagSwitch.describe("the same as --max-staleness 0: generate, train, generate"),
  whenStale: z
    .enum(["wait", "discard"])
    .default("wait")
    .describe("wait for old rollouts before newer ones are trained on, or train on and discard the old"),
  refillGroups: z
    .int()
    .min(0)
    .max(1000)
    .default(8)
    .describe("groups that may replace those without a spread, each step"),

  algorithm: z
    .string()
    .refine(
      (name) => name in PRESETS || isModulePath(name),
      `wanted ${Object.keys(PRESETS).join(", ")}, or ./your-own.ts`,
    )
    .default(DEFAULT_PRESET)
    .describe("a name that npx fulgur algorithms lists, or a module of your own: ./mine.ts (docs/ALGORITHMS.md)"),
  ...algorithmFlags,
  replay: z
    .int()
    .min(0)
    .max(1000)
    .default(0)
    .describe("groups of earlier batches that each step trains on again, by advantage and age"),
  updatesPerBatch: z.int().min(1).max(64).default(1).describe("optimizer updates that share a batch's groups"),
  method: z
    .enum(["lora", "full"])
    .default("lora")
    .describe("what is trained: lora, an adapter on all linear layers, or full, all weights"),
  loraRank: z.int().min(1).max(512).default(16).describe("rank of the adapter"),
  loraAlpha: z
    .number()
    .positive()
    .max(4096)
    .default(32)
    .describe("alpha of the adapter, which is scaled by alpha / rank"),
  learningRate: z.number().positive().max(1).default(1e-3).describe("learning rate of AdamW, at its highest"),
  learningRateSchedule: z
    .enum(["constant", "linear"])
    .default("constant")
    .describe("how the learning rate goes on: linear falls to 0 at the last step"),
  maxGradNorm: z.number().positive().default(1).describe("gradients are scaled down to this norm"),
  temperature: z.number().positive().max(10).default(1).describe("temperature at which the agent samples"),
  threads: z.int().min(1).max(256).default(1).describe("CPU threads of the training engine"),
  ...engineFlags,

  evalTasks: z
    .int()
    .min(0)
    .max(100_000)
    .default(512)
    .describe("held-out rollouts before and after; 0 skips both, as --live does"),
  watchFirstTool: z.string().min(1).default("memory").describe("tool whose share of first calls is reported"),
  pauseOnAlarm: flagSwitch.describe(
    "end at an alarm (docs/METRICS.md), before its version is routed; the same command goes on",
  ),
  metricsPort: z
    .int()
    .min(0)
    .max(65_535)
    .optional()
    .describe("serve the last step's metrics to Prometheus at this loopback port; 0 takes a free one (default: none)"),
  peakTflops: z
    .number()
    .positive()
    .max(1e6)
    .optional()
    .describe("operations that the machine can do, in 10^12 a second, which mfu is measured against (default: no mfu)"),
  keepCheckpoints: z
    .int()
    .min(1)
    .max(1000)
    .default(2)
    .describe("newest checkpoints that are kept, beside that of the best version so far"),
  keepVersions: z
    .int()
    .min(1)
    .max(1_000_000)
    .default(16)
    .describe("newest versions of the run whose folders are kept, beside the best and those in use"),
  final: z
    .enum(["last", "best"])
    .default("last")
    .describe("version that is evaluated and routed at the end: the last, or the one whose rollouts earned most"),
  pollMs: z.int().min(10).max(60_000).default(150).describe("milliseconds between looks at the store"),
  wedgeMinutes: z.number().positive().max(1440).default(10).describe("minutes without any progress that end the run"),
  drainSeconds: z
    .number()
    .min(0)
    .max(3600)
    .default(0)
    .describe("seconds that a stop waits for rollouts under way before it drops them; 0 leaves them to the next start"),
});
export type TrainerConfig = z.infer<typeof trainerConfigSchema>;

/**
 * The algorithm that a configuration asks for: its preset with the fields that were given in place of the preset's.
 * @throws FulgurError ERR_CONFIG for a setting that the algorithm does not have, or a module that was not loaded before
 */
export function algorithmOf(config: TrainerConfig): Algorithm {
  const algorithm = withFlags(namedAlgorithm(config.algorithm), config);
  const { lone } = config;
  if (lone === undefined || !takesLone(algorithm.advantage.type)) return algorithm;
  return algorithmSchema.parse({ ...algorithm, advantage: { ...algorithm.advantage, alone: { type: lone } } });
}

function namedAlgorithm(name: string): Algorithm {
  if (isModulePath(name)) return userAlgorithm(name);
  const preset = Object.entries(PRESETS).find(([each]) => each === name)?.[1];
  if (preset === undefined) throw new FulgurError("ERR_CONFIG", `there is no algorithm ${name}`);
  const { notes: _, ...algorithm } = preset;
  return algorithm;
}

/** Methods in units of reward: a baseline from outside the group is one of theirs. */
function takesLone(type: Algorithm["advantage"]["type"]): boolean {
  return type === "group-mean" || type === "leave-one-out";
}

/** Which recorded calls are trained on. */
export interface TrainedCalls {
  /** Undefined is all. */
  readonly roles: readonly string[] | undefined;
  /** Whether those without log-probabilities are left out. */
  readonly needsLogprobs: boolean;
}

export function trainedCalls(config: TrainerConfig): TrainedCalls {
  return { roles: config.roles?.split(","), needsLogprobs: needsBehaviour(algorithmOf(config).loss) };
}

/** How many versions a sample may be behind; `sync` is its other name for 0. */
export function stalenessBound(config: TrainerConfig): number {
  return config.sync ? 0 : config.maxStaleness;
}

/** The weights that an engine starts from: a model's folder, and an adapter on it where a run goes on from one. */
export interface EngineStart {
  readonly modelDir: string;
  readonly adapterDir?: string | undefined;
  /** Whether it only scores: the frozen reference of a KL term. */
  readonly isReference?: boolean;
}

/** The options that both engines have, for training from there under a configuration. */
export function engineOptions(config: TrainerConfig, { modelDir, adapterDir }: EngineStart): OnnxEngineOptions {
  const { method, loraRank: rank, loraAlpha: alpha, seed, temperature, threads, microbatchTokens } = config;
  const adapter = adapterDir === undefined ? {} : { adapterDir };
  return {
    modelDir,
    method: method === "lora" ? { type: "lora", rank, alpha, seed, ...adapter } : { type: "full" },
    temperature,
    threads,
    valueHead: needsCritic(algorithmOf(config).advantage),
    ...(microbatchTokens === undefined ? {} : { maxTokensPerMicrobatch: microbatchTokens }),
  };
}

/** Where a run keeps its files. */
export interface RunPaths {
  readonly run: string;
  readonly checkpoints: string;
  readonly summary: string;
  /** A line for each step. */
  readonly metrics: string;
  /** Folder of event files. */
  readonly tensorboard: string;
  /** Versions of the policy, one folder each. */
  readonly versions: string;
}

export function runPaths({ stateDir, run, tenant, policy }: TrainerConfig): RunPaths {
  // Absolute: inference and trainer need not share a working directory.
  const root = resolve(stateDir);
  const dir = join(root, "runs", qualified(tenant, run));
  return {
    run: dir,
    checkpoints: join(dir, "checkpoints"),
    summary: join(dir, "summary.json"),
    metrics: join(dir, "metrics.jsonl"),
    tensorboard: join(dir, "tensorboard"),
    versions: join(root, "policies", qualified(tenant, policy)),
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
    else if (SWITCHES.has(name) && (next === undefined || next.startsWith("--"))) given[name] = "true";
    else if (next === undefined) throw new FulgurError("ERR_CONFIG", `${flag} wants a value; see --help`);
    else {
      given[name] = next;
      at += 1;
    }
    given[name] = numberWhereWanted(name, String(given[name]));
  }
  const isLive = flagSwitch.safeParse(given["live"]).data === true;
  const { algorithm = DEFAULT_PRESET } = given;
  const parsed = trainerConfigSchema.safeParse({
    ...(isLive ? LIVE_DEFAULTS : {}),
    ...(algorithm === DEFAULT_PRESET ? {} : OTHER_ALGORITHM_DEFAULTS),
    ...given,
  });
  if (parsed.success) return checked(parsed.data);
  const [issue] = parsed.error.issues;
  const name = String(issue?.path[0] ?? "");
  const came = given[name] === undefined ? "nothing" : JSON.stringify(given[name]);
  const field = Object.entries(trainerConfigSchema.shape).find(([each]) => each === name)?.[1];
  // A schema's own words, where it has some, say more than its form does.
  const should =
    issue?.message.startsWith("wanted ") === true || field === undefined
      ? (issue?.message ?? "it is not usable")
      : `wanted ${wanted(field)}`;
  throw new FulgurError("ERR_CONFIG", `${flagOf(name)}: ${should}, ${came} came; see --help`);
}

/** @throws FulgurError ERR_CONFIG for flags that make no sense together */
function checked(config: TrainerConfig): TrainerConfig {
  checkEngineFlags(config);
  // A module's is known once it has been loaded.
  const algorithm = isModulePath(config.algorithm) ? undefined : algorithmOf(config);
  if (config.groupSize > 1 || algorithm === undefined) return config;
  if (!config.live) {
    throw new FulgurError(
      "ERR_CONFIG",
      "--group-size: wanted 2 or more, since nothing else is known of a task; 1 came",
    );
  }
  // What the method makes of a single rollout: nothing, where all it knows is the group.
  const { flat, advantages_RT } = groupAdvantage([Float64Array.of(1)], algorithm.advantage);
  if (flat || advantages_RT[0]?.[0] === 0 || algorithm.loss.type === "dpo") {
    throw new FulgurError(
      "ERR_CONFIG",
      `--algorithm ${config.algorithm} compares the rollouts of a group, and a live rollout is alone in its own; give --group-size 8 for windows of 8, or --algorithm ${DEFAULT_PRESET}`,
    );
  }
  return config;
}

/** What `--help` prints: every flag with its meaning, its choices and its default. */
export function helpText(): string {
  const rows = flagTexts().map(({ flag, text }) => `  ${flag.padEnd(26)} ${text}`);
  return `Usage: node trainer/main.ts --run ID [flags]\n\n${rows.join("\n")}\n\nThe store's read token is taken from FULGUR_STORE_TOKEN, a static key for inference from FULGUR_INFERENCE_KEY.\n`;
}

/** Every flag with what `--help` says of it. */
export function flagTexts(): { readonly name: string; readonly flag: string; readonly text: string }[] {
  return Object.entries(trainerConfigSchema.shape).map(([name, field]) => ({
    name,
    flag: flagOf(name),
    text: flagHelp(field, name in algorithmFlags ? "the algorithm's" : undefined),
  }));
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
