import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { sql } from "drizzle-orm";
import { startTestEdge, type TestEdge } from "../test/support/edge.ts";
import { freePort } from "../test/support/store.ts";
import { runLoad, type LoadResult } from "./proxy-parts/load.ts";
import { startPassThrough } from "./proxy-parts/pass-through.ts";
import type { BenchResult } from "./result.ts";

/**
 * What the proxy costs: the same load on a mock endpoint (64 tokens with ids and logprobs) directly, through a Worker that
 * only passes on, through Fulgur (real workerd, real libSQL, each call's record committed before its answer ends) and
 * through Portkey's gateway, which records nothing. Arms are interleaved; all processes share the machine, the load
 * generator's cost included.
 */
export const name = "proxy";

const ROUNDS = 3;
const CASE_MS = 1200;
const CONCURRENCY = 32;
const PORTKEY = join(import.meta.dirname, "peers/portkey");
const INSTALL_PORTKEY = "npm install --prefix bench/peers/portkey --ignore-scripts";

export interface ProxyBenchResult extends BenchResult {
  /** Fulgur's over Portkey's calls a second at 32; null where Portkey is not installed. */
  readonly ratio_portkey_c32: number | null;
  /** Fulgur's over Portkey's streams a second at 32; null where Portkey is not installed. */
  readonly ratio_portkey_streams: number | null;
  /** Fulgur's over the bare pass-through's calls a second at 32. */
  readonly ratio_passthrough_c32: number;
  /** Until a stream's first byte, one stream at a time: Fulgur's median over the pass-through's. */
  readonly first_token_ratio: number;
  /** Answers with status 200 that have no row in the store. */
  readonly lost: number;
  readonly p50_added_ms_c1: number;
  readonly calls_per_second_c32: number;
  readonly streams_per_second_c32: number;
}

interface Arm {
  readonly name: string;
  readonly url: string;
  readonly headers: readonly Readonly<Record<string, string>>[];
}

const CASES = [
  { name: "c1", concurrency: 1, stream: false },
  { name: "c32", concurrency: CONCURRENCY, stream: false },
  { name: "stream1", concurrency: 1, stream: true },
  { name: "stream", concurrency: CONCURRENCY, stream: true },
] as const;
type CaseName = (typeof CASES)[number]["name"];

export async function run(): Promise<ProxyBenchResult> {
  const upstream = await startUpstream();
  const edge = await startTestEdge({ inferenceUrl: upstream.url });
  const portkey = await startPortkey(upstream.url);
  const passThrough = await startPassThrough(upstream.url);
  try {
    const arms: Arm[] = [
      { name: "direct", url: upstream.url, headers: [{}] },
      { name: "pass-through", url: passThrough.url, headers: [{}] },
      { name: "fulgur", url: edge.url, headers: await rolloutHeaders(edge) },
      ...(portkey === undefined ? [] : [portkey.arm]),
    ];
    const results = await measure(arms);
    return report(results, await countLost(edge, results));
  } finally {
    portkey?.process.kill();
    upstream.process.kill();
    await passThrough.stop();
    await edge.stop();
  }
}

/** Arm and case → one result a round. */
type Results = Map<string, Record<CaseName, LoadResult[]>>;

async function measure(arms: readonly Arm[]): Promise<Results> {
  const results: Results = new Map(arms.map((arm) => [arm.name, { c1: [], c32: [], stream1: [], stream: [] }]));
  // The first round warms the compilers up; only its count of answers matters.
  for (let round = 0; round <= ROUNDS; round++) {
    for (const arm of arms) {
      for (const { name: caseName, concurrency, stream } of CASES) {
        const result = await runLoad({
          url: `${arm.url}/v1/chat/completions`,
          headers: arm.headers,
          body: requestBody(stream),
          concurrency,
          durationMs: CASE_MS,
        });
        results.get(arm.name)?.[caseName].push(result);
      }
    }
  }
  return results;
}

function report(results: Results, lost: number): ProxyBenchResult {
  const of = (arm: string, which: CaseName, figure: keyof LoadResult): number | null => {
    const cases = results.get(arm);
    return cases === undefined ? null : median(warm(cases[which]).map((r) => r[figure]));
  };
  const table = [...results].map(([arm, cases]) => ({
    arm,
    "calls/s c=1": of(arm, "c1", "perSecond"),
    "p50 ms c=1": of(arm, "c1", "p50Ms"),
    [`calls/s c=${CONCURRENCY}`]: of(arm, "c32", "perSecond"),
    [`p99 ms c=${CONCURRENCY}`]: of(arm, "c32", "p99Ms"),
    "first token ms c=1": of(arm, "stream1", "firstByteP50Ms"),
    [`streams/s c=${CONCURRENCY}`]: of(arm, "stream", "perSecond"),
    failures: Object.values(cases)
      .flat()
      .reduce((sum, r) => sum + r.failures, 0),
    records: arm === "fulgur" ? "durable" : "nothing",
  }));
  const over = (peer: string, which: CaseName, figure: keyof LoadResult): number | null => {
    const [ours, theirs] = [of("fulgur", which, figure), of(peer, which, figure)];
    return ours === null || theirs === null ? null : ours / theirs;
  };
  const ours = of("fulgur", "c32", "perSecond") ?? 0;
  const streams = of("fulgur", "stream", "perSecond") ?? 0;
  const added = median(
    warm(results.get("fulgur")?.c1 ?? []).map(
      (r, at) => r.p50Ms - (warm(results.get("direct")?.c1 ?? [])[at]?.p50Ms ?? 0),
    ),
  );
  const ratio = over("portkey", "c32", "perSecond");
  const passThrough = over("pass-through", "c32", "perSecond") ?? Number.NaN;
  const firstToken = over("pass-through", "stream1", "firstByteP50Ms") ?? Number.NaN;
  const portkeyStreams = over("portkey", "stream", "perSecond");
  return {
    name,
    ratio,
    ratio_portkey_c32: ratio,
    ratio_portkey_streams: portkeyStreams,
    ratio_passthrough_c32: passThrough,
    first_token_ratio: firstToken,
    lost,
    p50_added_ms_c1: added,
    calls_per_second_c32: ours,
    streams_per_second_c32: streams,
    table,
    notes: [
      `medians of ${ROUNDS} interleaved rounds of ${CASE_MS / 1000} s a case, after a lead-in; mock upstream, 64 tokens with ids and logprobs`,
      `p50 added at concurrency 1: ${added.toFixed(2)} ms (bar: 2.5); calls a second at ${CONCURRENCY}: ${Math.round(ours)}`,
      `over the bare pass-through: ${passThrough.toFixed(2)}× its calls a second at ${CONCURRENCY} (bar: 0.3), first token after ${firstToken.toFixed(2)}× its time (bar: 1.5)`,
      `answers without a row in the store: ${lost}`,
      ratio === null || portkeyStreams === null
        ? `Portkey's gateway is not installed: ${INSTALL_PORTKEY}`
        : `over Portkey's gateway 1.15.2 on Node, which records nothing and sleeps 25 ms before a stream's first chunk: ${ratio.toFixed(2)}× its calls a second (bar: 3), ${portkeyStreams.toFixed(2)}× its streams (bar: 1.1)`,
    ],
  };
}

/** Without the first round. */
function warm(rounds: readonly LoadResult[]): readonly LoadResult[] {
  return rounds.slice(1);
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}

async function countLost(edge: TestEdge, results: Results): Promise<number> {
  const answers = Object.values(results.get("fulgur") ?? {})
    .flat()
    .reduce((sum, r) => sum + r.answers, 0);
  const { rows } = await edge.store.db.get<{ rows: number }>(
    sql`select count(*) as rows from calls where http_status = 200 and trainable = 1`,
  );
  return Math.max(0, answers - rows);
}

/** Rollouts that share the load, as a training step's do. */
async function rolloutHeaders(edge: TestEdge): Promise<Record<string, string>[]> {
  const headers: Record<string, string>[] = [];
  for (let at = 0; at < 128; at++) {
    const { token } = await edge.rollout("train", {
      caps: { maxCalls: 10_000, maxTokens: 10_000_000 },
    });
    headers.push({ authorization: `Bearer ${token}` });
  }
  return headers;
}

function requestBody(stream: boolean): string {
  const tool = (toolName: string, fields: readonly string[]): object => ({
    type: "function",
    function: {
      name: toolName,
      description: `Looks something up by ${fields.join(" and ")}.`,
      parameters: {
        type: "object",
        properties: Object.fromEntries(fields.map((field) => [field, { type: "string" }])),
        required: fields,
      },
    },
  });
  return JSON.stringify({
    model: "gpt-4o-mini",
    messages: [
      {
        role: "system",
        content: `You book flights. ${"Look first, then answer in one line. ".repeat(15)}`,
      },
      { role: "user", content: 'Find "Ann Lee" a flight from "Rome" to "Oslo".' },
    ],
    tools: [tool("memory", ["name"]), tool("search", ["from", "to"])],
    max_tokens: 64,
    ...(stream ? { stream: true } : {}),
  });
}

interface Started {
  readonly url: string;
  readonly process: ChildProcess;
}

async function startUpstream(): Promise<Started> {
  const child = spawn(process.execPath, [join(import.meta.dirname, "proxy-parts/upstream.ts")], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [line] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
  return { url: line, process: child };
}

async function startPortkey(
  upstreamUrl: string,
): Promise<{ readonly arm: Arm; readonly process: ChildProcess } | undefined> {
  const script = join(PORTKEY, "node_modules/@portkey-ai/gateway/build/start-server.js");
  if (!existsSync(script)) return undefined;
  const port = await freePort();
  const child = spawn(process.execPath, [script, `--port=${port}`, "--headless"], {
    stdio: "ignore",
  });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; tries < 100; tries++) {
    const up = await fetch(url).then(
      () => true,
      () => false,
    );
    if (up) break;
    await pause(100);
  }
  const headers = {
    "x-portkey-provider": "openai",
    "x-portkey-custom-host": `${upstreamUrl}/v1`,
    authorization: "Bearer none",
  };
  return { arm: { name: "portkey", url, headers: [headers] }, process: child };
}
