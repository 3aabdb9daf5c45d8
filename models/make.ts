/**
 * Makes the built-in model, start to end: `npm run model`. Resumes where it was stopped; Ctrl-C saves first.
 *
 *   --tokens N   budget in tokens (default 4,000,000)     --seed N    another seed, another model (default 0)
 *   --threads N  CPU threads of the engine (default 1)    --out DIR   where the model goes (default models/flight)
 *   --state DIR  checkpoints (default .fulgur/make)       --fresh     forget an unfinished run
 *   --tasks N    held-out tasks of the evaluation (default 1024; a quarter of them greedily)
 *   --evaluate   only measures the model in --out
 */

import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import * as z from "zod";
import { FulgurError, messageOf } from "#shared/errors.ts";
import type { Engine } from "../trainer/engine/contract.ts";
import { createOnnxEngine } from "../trainer/engine/onnx/engine.ts";
import { Random } from "../trainer/engine/random.ts";
import { parseArchitecture } from "../trainer/model/architecture.ts";
import { writeSafetensors } from "../trainer/model/safetensors.ts";
import { loadTokenizer, type Tokenizer } from "../trainer/model/tokenizer.ts";
import { type Batch, batchOf } from "./batches.ts";
import { modelCard } from "./card.ts";
import { CHAT_TEMPLATE } from "./chat-template.ts";
import { type Evaluation, evaluate } from "./evaluate.ts";
import { initialWeights } from "./initial-weights.ts";
import { DEFAULT_TOKENS, GENERATION_CONFIG, learningRateAt, modelConfig, RECIPE } from "./recipe.ts";
import { type SlotAccuracy, slotAccuracy } from "./slots.ts";
import { buildTokenizer, tokenizerConfig } from "./tokenizer.ts";
import { vocabularyTexts } from "./traces.ts";

const optionsSchema = z.strictObject({
  tokens: z.coerce.number().int().positive().default(DEFAULT_TOKENS),
  threads: z.coerce.number().int().min(1).max(256).default(1),
  seed: z.coerce.number().int().nonnegative().default(0),
  out: z.string().min(1).default("models/flight"),
  state: z.string().min(1).default(".fulgur/make"),
  tasks: z.coerce.number().int().min(4).default(1024),
  fresh: z.boolean().default(false),
  evaluate: z.boolean().default(false),
});
type Options = z.infer<typeof optionsSchema>;

/** Where a run is; `recipe` says which run it is. */
const progressSchema = z.object({ recipe: z.string(), step: z.int(), tokens: z.int(), trainedMs: z.number() });
type Progress = z.infer<typeof progressSchema>;

const SAVE_EVERY_MS = 60_000;
const REPORT_EVERY_MS = 10_000;

try {
  await main(parseOptions());
} catch (error) {
  process.stderr.write(`${error instanceof FulgurError ? error.message : String(error)}\n`);
  process.exitCode = 1;
}

async function main(options: Options): Promise<void> {
  if (options.evaluate) {
    print(table(await measure(options)));
    return;
  }
  const startDir = join(options.state, "start");
  const progress = await begin(options, startDir);
  const engine = await createOnnxEngine({
    modelDir: startDir,
    method: { type: "full" },
    optimizer: RECIPE.optimizer,
    threads: options.threads,
    maxTokensPerMicrobatch: 2048,
  });
  try {
    if (progress.step > 0) await engine.load(join(options.state, `step-${progress.step}`));
    const tokenizer = await loadTokenizer(startDir);
    const end = await train(engine, tokenizer, { options, progress });
    if (end.tokens < options.tokens) {
      print(`Stopped at step ${end.step}; the same command goes on from there.`);
      process.exitCode = 130;
      return;
    }
    const slots = await slotAccuracy(engine, tokenizer, 512);
    await engine.exportWeights(options.out);
    const evaluations = await measure(options);
    print(table(evaluations));
    const card = modelCard({ ...evaluations, slots, progress: end, options, parameters: engine.info.parameters.total });
    await writeFile(join(options.out, "README.md"), card);
    print(`The model is in ${options.out}.`);
  } finally {
    await engine.close();
  }
}

/** Writes the folder that training starts from, or finds the run that was begun in it. */
async function begin({ state, fresh, tokens, seed }: Options, startDir: string): Promise<Progress> {
  const recipe = JSON.stringify({ ...RECIPE, tokens, seed });
  if (fresh) await rm(state, { recursive: true, force: true });
  const saved = await readFile(join(state, "progress.json"), "utf8").catch(() => null);
  if (saved !== null) {
    const progress = progressSchema.parse(JSON.parse(saved));
    if (progress.recipe !== recipe)
      throw new FulgurError(
        "ERR_CONFIG",
        `${state} holds a run of another recipe. Finish it, or start anew with --fresh.`,
      );
    print(`Going on from step ${progress.step}.`);
    return progress;
  }
  const tokenizer = buildTokenizer(vocabularyTexts());
  const config = modelConfig(Object.keys(tokenizer.model.vocab).length);
  const random = Random.seeded(seed);
  await rm(startDir, { recursive: true, force: true });
  await mkdir(startDir, { recursive: true });
  await writeFile(join(startDir, "tokenizer.json"), json(tokenizer));
  await writeFile(join(startDir, "tokenizer_config.json"), json(tokenizerConfig(CHAT_TEMPLATE)));
  await writeFile(join(startDir, "generation_config.json"), json(GENERATION_CONFIG));
  await writeFile(join(startDir, "config.json"), json(config));
  await writeSafetensors(
    join(startDir, "model.safetensors"),
    initialWeights(parseArchitecture(config), () => random.next()),
  );
  return { recipe, step: 0, tokens: 0, trainedMs: 0 };
}

interface TrainContext {
  readonly options: Options;
  readonly progress: Progress;
}

/** Trains until the budget is used or Ctrl-C; what it returns is saved. */
async function train(engine: Engine, tokenizer: Tokenizer, { options, progress }: TrainContext): Promise<Progress> {
  let { step, tokens, trainedMs } = progress;
  const stopping = new AbortController();
  const stop = (): void => stopping.abort();
  process.on("SIGINT", stop).on("SIGTERM", stop);
  const now = (): Progress => ({ recipe: progress.recipe, step, tokens, trainedMs: Math.round(trainedMs) });
  let loss: number | null = null;
  let lastSave = performance.now();
  let lastReport = -Infinity;
  let slots: SlotAccuracy | null = null;
  let batch = batchOf(step, tokens, tokenizer, options.seed);
  while (tokens < options.tokens && !stopping.signal.aborted) {
    const began = performance.now();
    const running = engine.backward(batch.samples, meanLoss(batch));
    // The next batch is made while the engine's thread works on this one.
    const next = batchOf(step + 1, tokens + batch.tokens, tokenizer, options.seed);
    const scores = await running;
    const learningRate = learningRateAt(tokens / options.tokens);
    await engine.step({ learningRate, maxGradNorm: RECIPE.maxGradNorm });
    const batchLoss = -scores.reduce((sum, { logprobs }) => sum + total(logprobs), 0) / batch.targets;
    loss = loss === null ? batchLoss : 0.95 * loss + 0.05 * batchLoss;
    step += 1;
    tokens += batch.tokens;
    batch = next;
    trainedMs += performance.now() - began;
    if (performance.now() - lastReport > REPORT_EVERY_MS) {
      slots = await slotAccuracy(engine, tokenizer, 48);
      lastReport = performance.now();
      print(progressLine({ step, tokens, trainedMs, loss, slots, budget: options.tokens }));
    }
    if (performance.now() - lastSave > SAVE_EVERY_MS) {
      await save(engine, options.state, now());
      lastSave = performance.now();
    }
  }
  await save(engine, options.state, now());
  process.off("SIGINT", stop).off("SIGTERM", stop);
  return now();
}

/** The cotangent of the mean negative log-likelihood over a batch's targets. */
function meanLoss({ samples, targets }: Batch): { dLogprobs: Float32Array }[] {
  return samples.map(({ tokens, lossMask }) => {
    const dLogprobs = new Float32Array(tokens.length);
    for (const [t, bit] of lossMask.entries()) dLogprobs[t] = bit === 1 ? -1 / targets : 0;
    return { dLogprobs };
  });
}

/** Checkpoint first, then the file that names it: whenever it is stopped, progress.json names a whole checkpoint. */
async function save(engine: Engine, state: string, progress: Progress): Promise<void> {
  const before = await readFile(join(state, "progress.json"), "utf8").catch(() => null);
  await engine.save(join(state, `step-${progress.step}`));
  await writeFile(join(state, "progress.json.new"), json(progress));
  await rename(join(state, "progress.json.new"), join(state, "progress.json"));
  if (before === null) return;
  const { step } = progressSchema.parse(JSON.parse(before));
  if (step !== progress.step) await rm(join(state, `step-${step}`), { recursive: true, force: true });
}

async function measure({ out, tasks }: Options): Promise<{ sampled: Evaluation; greedy: Evaluation }> {
  const sampled = await evaluate(out, { count: tasks, temperature: 1 });
  const greedy = await evaluate(out, { count: Math.ceil(tasks / 4), temperature: 0 });
  return { sampled, greedy };
}

function table({ sampled, greedy }: { readonly sampled: Evaluation; readonly greedy: Evaluation }): string {
  const share = (value: number): string => (Number.isNaN(value) ? "–" : value.toFixed(3)).padStart(8);
  const row = (title: string, pick: (evaluation: Evaluation) => number): string =>
    `${title.padEnd(44)}${share(pick(sampled))}${share(pick(greedy))}`;
  const paths = sampled.paths.map(([path, part]) => `${path} ${part.toFixed(3)}`).slice(0, 6);
  return [
    `${"held-out tasks".padEnd(44)}${" sampled".padStart(8)}${"greedy".padStart(8)}`,
    `${"runs".padEnd(44)}${String(sampled.n).padStart(8)}${String(greedy.n).padStart(8)}`,
    row("memory first", ({ memoryFirst }) => memoryFirst),
    row("right", ({ correct }) => correct),
    row("right, of Memory → Search → Answer", ({ correctOfMemorySearchAnswer }) => correctOfMemorySearchAnswer),
    row("well-formed answers", ({ wellFormed }) => wellFormed),
    row("failing tool calls", ({ failedCalls }) => failedCalls),
    row("reward", ({ reward }) => reward),
    `paths (M memory, S search, A answer): ${paths.join(", ")}`,
  ].join("\n");
}

interface LineFacts {
  readonly step: number;
  readonly tokens: number;
  readonly trainedMs: number;
  readonly loss: number;
  readonly slots: SlotAccuracy;
  readonly budget: number;
}

function progressLine({ step, tokens, trainedMs, loss, slots, budget }: LineFacts): string {
  const rate = tokens / (trainedMs / 1000);
  const left = Math.max(0, budget - tokens) / rate;
  const copied = Object.entries(slots).map(([kind, value]) => `${kind} ${value.toFixed(2)}`);
  return [
    `step ${step}`,
    `${(tokens / 1e6).toFixed(2)} of ${(budget / 1e6).toFixed(1)} M tokens`,
    `loss ${loss.toFixed(3)}`,
    `${Math.round(rate)} tokens/s`,
    `${Math.floor(left / 60)}m${String(Math.round(left % 60)).padStart(2, "0")}s left`,
    `copies ${copied.join(" ")}`,
  ].join(" · ");
}

function total(values: Float32Array): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

function parseOptions(): Options {
  const text = { type: "string" } as const;
  const flag = { type: "boolean" } as const;
  try {
    const { values } = parseArgs({
      options: {
        tokens: text,
        threads: text,
        seed: text,
        tasks: text,
        out: text,
        state: text,
        fresh: flag,
        evaluate: flag,
      },
    });
    return optionsSchema.parse(values);
  } catch (cause) {
    const detail = cause instanceof z.ZodError ? z.prettifyError(cause) : messageOf(cause);
    throw new FulgurError("ERR_CONFIG", `${detail}\nThe flags are described at the top of models/make.ts.`, { cause });
  }
}
