import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { runLoad } from "./decode-parts/load.ts";
import { writeBenchAdapter, writeBenchModel } from "./decode-parts/model.ts";
import { type BenchServer, findVllm, INSTALL_VLLM, startOurs, startVllm } from "./decode-parts/servers.ts";
import type { BenchResult } from "./result.ts";

/**
 * Decoding over HTTP: 60 tokens in, 64 out, log-probabilities and token ids asked for, at 1, 8 and 32 streams, of the
 * built-in endpoint and of vLLM's CPU build. Both run all the time and take turns.
 */

export const name = "decode";

const PROMPT_TOKENS = 60;
const ANSWER_TOKENS = 64;
/** Streams → requests of one turn: long enough to be in full swing, short enough to take turns often. */
const TURNS = [
  { streams: 1, requests: 6 },
  { streams: 8, requests: 24 },
  { streams: 32, requests: 64 },
];
const ROUNDS = 3;
/** vLLM's threads spin on after its last answer and would slow down whoever comes next. */
const PAUSE_MS = 1000;

/** Runs the benchmark; `ratio` is ours over vLLM at one stream. */
export async function run(): Promise<BenchResult> {
  const dir = await mkdtemp(join(tmpdir(), "fulgur-bench-decode-"));
  const servers: BenchServer[] = [];
  try {
    const modelDir = join(dir, "model");
    const parameters = await writeBenchModel(modelDir);
    await writeBenchAdapter(join(dir, "adapters", "bench", "1"), 1);
    const ours = await startOurs(modelDir, join(dir, "adapters"));
    servers.push(ours);
    const vllm = findVllm();
    const peer = vllm === null ? null : await startVllm(vllm, modelDir);
    if (peer !== null) servers.push(peer);
    const table: Record<string, unknown>[] = [];
    for (const turn of TURNS) table.push(await compare(ours, peer, turn));
    const notes = [
      `${(parameters / 1e6).toFixed(1)} M parameters, float32, ${PROMPT_TOKENS} tokens in, ${ANSWER_TOKENS} out, ${availableParallelism()} processors, medians of ${ROUNDS} rounds in turns.`,
      peer === null
        ? `vLLM is not installed: ${INSTALL_VLLM} installs it (or set VLLM to its command).`
        : "vLLM 0.32 CPU build: --enable-lora --dtype float32 --enforce-eager; ours: two decode threads.",
    ];
    const headline = table[0]?.["ratio"];
    return { name, ratio: typeof headline === "number" ? headline : null, table, notes };
  } finally {
    await Promise.all(servers.map((server) => server.close()));
    await rm(dir, { recursive: true });
  }
}

async function compare(
  ours: BenchServer,
  peer: BenchServer | null,
  turn: { readonly streams: number; readonly requests: number },
): Promise<Record<string, unknown>> {
  const load = {
    ...turn,
    promptTokens: PROMPT_TOKENS,
    answerTokens: ANSWER_TOKENS,
    model: "base",
    counter: { next: turn.streams * 100_000 },
  };
  const oursRates: number[] = [];
  const peerRates: number[] = [];
  // The first round warms both up and does not count.
  for (let round = 0; round <= ROUNDS; round++) {
    const mine = await measure(ours, load);
    const theirs = peer === null ? null : await measure(peer, load);
    if (round === 0) continue;
    oursRates.push(mine);
    if (theirs !== null) peerRates.push(theirs);
  }
  const mine = median(oursRates);
  const theirs = peer === null ? null : median(peerRates);
  return {
    streams: turn.streams,
    "ours, tokens/s": mine,
    "vLLM, tokens/s": theirs,
    ratio: theirs === null ? null : median(oursRates.map((rate, i) => rate / (peerRates[i] ?? NaN))),
  };
}

async function measure(server: BenchServer, load: Parameters<typeof runLoad>[1]): Promise<number> {
  await new Promise((resolve) => {
    setTimeout(resolve, PAUSE_MS);
  });
  return (await runLoad(server.url, load)).tokensPerSecond;
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? NaN;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? NaN)) / 2;
}
