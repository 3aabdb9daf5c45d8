import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { ServePrecision } from "../trainer/inference/config.ts";
import { type LoadResult, runLoad } from "./decode-parts/load.ts";
import {
  type BenchShape,
  FIVE_MILLION,
  HUNDRED_THIRTY_MILLION,
  writeBenchAdapter,
  writeBenchModel,
} from "./decode-parts/model.ts";
import { type BenchServer, findVllm, INSTALL_VLLM, startOurs, startVllm } from "./decode-parts/servers.ts";
import type { BenchResult } from "./result.ts";
import { chosenRounds } from "./train-parts/flags.ts";

/**
 * Decoding over HTTP, log-probabilities and token ids asked for, at 1, 8 and 32 streams, of the built-in endpoint and of
 * vLLM's CPU build. All run all the time and take turns.
 */

export const name = "decode";
export const about = "decoding over HTTP against vLLM's CPU build; --shape 5m or 130m, --streams one of 1, 8, 32";
export const options = {
  shape: { type: "string" },
  streams: { type: "string" },
  rounds: { type: "string" },
} as const;

const PROMPT_TOKENS = 60;
const ROUNDS = 3;
/** vLLM's threads spin on after its last answer and would slow down whoever comes next. */
const PAUSE_MS = 1000;

interface Setting {
  readonly shape: BenchShape;
  readonly precisions: readonly ServePrecision[];
  readonly answerTokens: number;
  /** Streams and requests of one turn: long enough to be in full swing, short enough to take turns often. */
  readonly turns: readonly Turn[];
}

interface Turn {
  readonly streams: number;
  readonly requests: number;
}

const SETTINGS: Readonly<Record<string, Setting>> = {
  "5m": {
    shape: FIVE_MILLION,
    precisions: ["fp32"],
    answerTokens: 64,
    turns: [
      { streams: 1, requests: 6 },
      { streams: 8, requests: 24 },
      { streams: 32, requests: 64 },
    ],
  },
  "130m": {
    shape: HUNDRED_THIRTY_MILLION,
    precisions: ["fp32", "int8"],
    answerTokens: 32,
    turns: [
      { streams: 1, requests: 3 },
      { streams: 8, requests: 16 },
      { streams: 32, requests: 32 },
    ],
  },
};

/** A server that takes turns with the others. */
interface Arm {
  readonly title: string;
  readonly server: BenchServer;
}

/** Runs the benchmark; `ratio` is that of our float32 over vLLM in the first row. */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<BenchResult> {
  const setting = SETTINGS[textOf(flags["shape"]) ?? "5m"];
  if (setting === undefined) throw new Error(`--shape takes one of ${Object.keys(SETTINGS).join(", ")}`);
  const turns = setting.turns.filter(({ streams }) => [undefined, String(streams)].includes(textOf(flags["streams"])));
  if (turns.length === 0) {
    throw new Error(`--streams takes one of ${setting.turns.map(({ streams }) => streams).join(", ")}`);
  }
  const rounds = chosenRounds(flags, ROUNDS);
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-decode-"));
  const ours: Arm[] = [];
  let peer: Arm | null = null;
  try {
    const modelDir = join(dir, "model");
    const parameters = await writeBenchModel(modelDir, setting.shape);
    await writeBenchAdapter(join(dir, "adapters", "bench", "1"), 1, setting.shape);
    for (const precision of setting.precisions) {
      ours.push({ title: `ours ${precision}`, server: await startOurs(modelDir, join(dir, "adapters"), precision) });
    }
    const vllm = findVllm();
    if (vllm !== null) peer = { title: "vLLM", server: await startVllm(vllm, modelDir) };
    const table: Record<string, unknown>[] = [];
    for (const turn of turns) {
      table.push(...(await compare(ours, peer, { turn, rounds, answerTokens: setting.answerTokens })));
    }
    const notes = [
      `${(parameters / 1e6).toFixed(1)} M parameters, ${PROMPT_TOKENS} tokens in, ${setting.answerTokens} out, ${availableParallelism()} processors, medians of ${rounds} rounds in turns; ratios are of one round each, above 1 where ours is better.`,
      "First token: median of streamed requests, in a load of the same number of streams.",
      peer === null
        ? `vLLM is not installed: ${INSTALL_VLLM} installs it (or set VLLM to its command).`
        : "vLLM 0.32 CPU build: --enable-lora --dtype float32 --enforce-eager; ours: two decode threads.",
    ];
    const headline = table[0]?.["ratio"];
    return { name, ratio: typeof headline === "number" ? headline : null, table, notes };
  } finally {
    await Promise.all([...ours, ...(peer === null ? [] : [peer])].map(({ server }) => server.close()));
    await rm(dir, { recursive: true });
  }
}

/** A row for each of our arms, beside the peer's. */
async function compare(
  ours: readonly Arm[],
  peer: Arm | null,
  { turn, rounds, answerTokens }: { readonly turn: Turn; readonly rounds: number; readonly answerTokens: number },
): Promise<Record<string, unknown>[]> {
  const load = {
    ...turn,
    promptTokens: PROMPT_TOKENS,
    answerTokens,
    model: "base",
    counter: { next: turn.streams * 100_000 },
  };
  const arms = peer === null ? ours : [...ours, peer];
  const rates = arms.map((): number[] => []);
  const firsts = arms.map((): number[] => []);
  // The first round warms all of them up and does not count.
  for (let round = 0; round <= rounds; round++) {
    for (const [a, { server }] of arms.entries()) {
      await pause(PAUSE_MS);
      const whole = await runLoad(server.url, { ...load, reply: "whole" });
      const streamed: LoadResult = await runLoad(server.url, { ...load, requests: turn.streams, reply: "stream" });
      if (round === 0) continue;
      rates[a]?.push(whole.tokensPerSecond);
      firsts[a]?.push(median(streamed.firstMs) ?? NaN);
    }
  }
  const peerRates = peer === null ? [] : (rates.at(-1) ?? []);
  const peerFirsts = peer === null ? [] : (firsts.at(-1) ?? []);
  return ours.map(({ title }, a) => ({
    streams: turn.streams,
    arm: title,
    "tokens/s": median(rates[a] ?? []),
    "vLLM, tokens/s": median(peerRates),
    ratio: medianRatio(rates[a] ?? [], peerRates),
    "first token, ms": median(firsts[a] ?? []),
    "vLLM, ms": median(peerFirsts),
    "ratio to first token": medianRatio(peerFirsts, firsts[a] ?? []),
  }));
}

/** Median over rounds of a / b; null where one did not run. A slow spell of the machine falls on both sides of a round. */
function medianRatio(a: readonly number[], b: readonly number[]): number | null {
  return a.length === 0 || b.length === 0 ? null : median(a.map((value, round) => value / (b[round] ?? NaN)));
}

function median(values: readonly number[]): number | null {
  if (values.length === 0) return null;
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? NaN;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? NaN)) / 2;
}

function textOf(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}
