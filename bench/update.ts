import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { BenchResult } from "./result.ts";
import { CASE_FLAGS, chosenCases, chosenRounds } from "./train-parts/flags.ts";
import { FIVE_MILLION, writeRandomModel } from "./train-parts/model.ts";
import { apart, callRows, GROUP_CALLS, GROUP_ROLLOUTS, joinedRows, makeBatch } from "./update-parts/batch.ts";
import { findTrl, INSTALL_TRL, startOurs, startTrl } from "./update-parts/process.ts";
import type { OurUpdate, TrlUpdate, UpdateSetup } from "./update-parts/protocol.ts";

/**
 * Whole GRPO updates of our trainer against TRL's: from finished rollouts to moved weights, on the same weights, tokens
 * and rewards. The two are processes of their own and take their updates in turns, so that whatever else the machine does
 * falls on both.
 */

export const name = "update";
export const about = "whole GRPO updates against TRL's GRPOTrainer";
export const options = CASE_FLAGS;

const THREADS = 2;
const ROUNDS = 5;
const GROUPS = 16;
/** PyTorch's threads spin on for a moment after their last work, and would slow down whoever comes next. */
const PAUSE_MS = 300;
/** So small that the weights stay where the batch was sampled, round after round. */
const LEARNING_RATE = 1e-7;

interface Case {
  readonly key: string;
  readonly title: string;
  readonly method: "full" | "lora";
  readonly klCoefficient: number;
  /** Whether a rollout's calls are one training row, as prefixes allow, or each one of its own. */
  readonly joined: boolean;
}

const CASES: readonly Case[] = [
  { key: "full", title: "full weights", method: "full", klCoefficient: 0.04, joined: true },
  { key: "lora", title: "LoRA rank 16", method: "lora", klCoefficient: 0.04, joined: true },
  { key: "calls", title: "full weights, one row a call", method: "full", klCoefficient: 0.04, joined: false },
  { key: "no-kl", title: "full weights, no KL term", method: "full", klCoefficient: 0, joined: true },
];
/** Rows of one pass of TRL's: the fastest of 8, 16, 32 and 64 here. */
const PASS_ROWS = 16;

export interface UpdateBenchResult extends BenchResult {
  /** The largest part of the threads' time in an update that was spent outside ONNX Runtime. */
  readonly typescript: number;
}

/** Runs the benchmark; `ratio` is the first case's. */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<UpdateBenchResult> {
  const cases = chosenCases(CASES, flags);
  const rounds = chosenRounds(flags, ROUNDS);
  const python = findTrl();
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-update-"));
  try {
    const model = join(dir, "model");
    const parameters = await writeRandomModel(model, FIVE_MILLION);
    const measured = [];
    for (const each of cases) measured.push(await measure(each, { model, dir, python, rounds }));
    return {
      name,
      ratio: measured[0]?.ratio ?? null,
      typescript: Math.max(...measured.map(({ typescript }) => typescript)),
      table: measured.map(({ row }) => row),
      notes: [
        `${parameters.toLocaleString("en")} parameters, ${GROUPS * GROUP_ROLLOUTS} rollouts in groups of ${GROUP_ROLLOUTS} with ${GROUP_CALLS} calls each, as the flight task makes them; float32 and ${THREADS} threads of ${availableParallelism()} processors on both sides; medians of ${rounds} rounds in turns, the ratio too (each of one round).`,
        "An update: credit, advantages, scoring by the reference where there is a KL term, loss, backward, clipping, AdamW. In ORT, TypeScript: parts of the threads' time inside ONNX Runtime, and busy outside it; the rest is waiting for each other.",
        ...measured.map(({ note }) => note),
        python === null
          ? `TRL is not installed: ${INSTALL_TRL} (or set PYTHON to an interpreter that has it).`
          : `TRL's own train(), ${PASS_ROWS} rows a pass, SDPA attention, without generation, gradient checkpointing, logging and saving; gradient norms agree in each round where rows are the same.`,
      ],
    };
  } finally {
    await rm(dir, { recursive: true });
  }
}

interface World {
  readonly model: string;
  readonly dir: string;
  readonly python: string | null;
  readonly rounds: number;
}

async function measure(case_: Case, { model, dir, python, rounds }: World) {
  const { key, title, method, klCoefficient, joined } = case_;
  const batch = makeBatch(GROUPS, FIVE_MILLION.vocab_size);
  const setup: UpdateSetup = {
    model,
    method,
    adapter: join(dir, `adapter-${key}`),
    klCoefficient,
    learningRate: LEARNING_RATE,
    threads: THREADS,
  };
  const rollouts = joined ? batch : apart(batch);
  const ours = await startOurs({ ...setup, rollouts });
  const trl =
    python === null
      ? null
      : await startTrl(python, {
          ...setup,
          rows: joined ? joinedRows(rollouts) : callRows(rollouts),
          group: joined ? GROUP_ROLLOUTS : GROUP_CALLS,
          passRows: PASS_ROWS,
        });
  try {
    const times = { ours: [] as OurUpdate[], trl: [] as TrlUpdate[] };
    // The first round opens sessions and fills pools.
    for (let round = 0; round <= rounds; round++) {
      const mine = await ours.update();
      if (round > 0) times.ours.push(mine);
      await pause(PAUSE_MS);
      if (trl === null) continue;
      const theirs = await trl.update();
      if (round > 0) times.trl.push(theirs);
      // With a row for each call TRL's groups and means are over calls, and ours over rollouts.
      if (joined && Math.abs(theirs.gradNorm / mine.gradNorm - 1) > 1e-3) {
        throw new Error(`The arms do not compute the same: gradient norm ${mine.gradNorm}, ${theirs.gradNorm} in TRL.`);
      }
      await pause(PAUSE_MS);
    }
    const ratio = trl === null ? null : median(times.trl.map(({ ms }, at) => ms / (times.ours[at]?.ms ?? NaN)));
    const of = (pick: (update: OurUpdate) => number): number => median(times.ours.map(pick));
    const typescript = of((update) => update.typescript);
    const sizes = (ready: typeof ours.ready): string =>
      `${ready.rows} rows, ${ready.tokens.toLocaleString("en")} tokens, ${ready.paddedTokens.toLocaleString("en")} with padding`;
    return {
      ratio,
      typescript,
      note: `${title}: ours ${sizes(ours.ready)}${trl === null ? "" : `; TRL ${trl.ready.version}: ${sizes(trl.ready)}`}`,
      row: {
        case: title,
        "ours ms": of(({ ms }) => ms),
        "TRL ms": trl === null ? null : median(times.trl.map(({ ms }) => ms)),
        ratio,
        "score ms": of(({ scoreMs }) => scoreMs),
        "backward ms": of(({ backwardMs }) => backwardMs),
        "step ms": of(({ stepMs }) => stepMs),
        "in ORT": of(({ runtime }) => runtime),
        TypeScript: typescript,
      },
    };
  } finally {
    ours.close();
    trl?.close();
  }
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? NaN;
}
