import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { sql } from "drizzle-orm";
import { startTestEdge, type TestEdge } from "../test/support/edge.ts";
import { descendantsOf } from "../test/support/processes.ts";
import { openLoop, type OpenLoopResult } from "./ingest-parts/open-loop.ts";
import { watchProcesses } from "./ingest-parts/process-figures.ts";
import type { BenchResult } from "./result.ts";

/**
 * Calls at a fixed rate for minutes, each with 4 KB of tokens and recorded before it is answered: what the edge adds to
 * their time, whether its memory stays flat, and whether each answer is a row, once. Load, mock endpoint, workerd and libSQL
 * share the machine.
 */
export const name = "sustained";
export const about = "calls at a fixed rate for minutes: time added, memory, lost and duplicated records";
export const options = { minutes: { type: "string" }, rate: { type: "string" } } as const;

/** 4 KB: 896 + 64 token ids and 64 logprobs of 4 bytes, as an agent's long prompt and short answer have them. */
const PROMPT_TOKENS = 896;
const RESPONSE_TOKENS = 64;
const ROLLOUTS = 128;
/** Before the clock starts, compilers and caches warm up: at a quarter of the rate, then at all of it. */
const LEAD_IN_MS = 4000;
const DIRECT_MS = 5000;

export interface SustainedBenchResult extends BenchResult {
  /** What was asked for, and the answers with status 200 a second. */
  readonly rate: number;
  readonly calls_per_second: number;
  readonly minutes: number;
  readonly p50_added_ms: number;
  readonly p99_added_ms: number;
  /** MiB a minute over the second half, of workerd and sqld. */
  readonly workerd_growth: number;
  readonly sqld_growth: number;
  /** Told to come again, or failed. */
  readonly refused: number;
  readonly lost: number;
  readonly duplicated: number;
}

export async function run(flags: Readonly<Record<string, unknown>>): Promise<SustainedBenchResult> {
  const minutes = positive("minutes", flags["minutes"] ?? "10");
  const rate = positive("rate", flags["rate"] ?? "1000");
  const upstream = await startUpstream();
  const edge = await startTestEdge({ inferenceUrl: upstream.url });
  try {
    const headers = await rolloutHeaders(edge);
    const body = requestBody();
    const load = (url: string, durationMs: number, perSecond = rate): Promise<OpenLoopResult> =>
      openLoop({ url: `${url}/v1/chat/completions`, headers, body, perSecond, durationMs });
    const direct = await load(upstream.url, DIRECT_MS);
    const leadIn = [await load(edge.url, LEAD_IN_MS, rate / 4), await load(edge.url, LEAD_IN_MS)];
    const watch = watchProcesses({
      workerd: pidOf("workerd"),
      sqld: edge.store.pid,
      "mock endpoint": upstream.process.pid ?? 0,
      load: process.pid,
    });
    const measured = await load(edge.url, minutes * 60_000);
    const table = watch.stop();
    await drained(edge);
    const answers = [...leadIn, measured].reduce((sum, part) => sum + answered(part), 0);
    const { rows, counted } = await counts(edge);
    const lost = Math.max(0, answers - rows);
    const duplicated = Math.max(0, counted - rows);
    const perSecond = answered(measured) / measured.seconds;
    const [p50, p99] = [measured.p50Ms - direct.p50Ms, measured.p99Ms - direct.p50Ms];
    const growth = (process: string): number => table.find((row) => row.process === process)?.["MiB a minute"] ?? 0;
    const others = [...measured.statuses].filter(([status]) => status !== 200);
    return {
      name,
      ratio: null,
      rate,
      calls_per_second: perSecond,
      minutes,
      p50_added_ms: p50,
      p99_added_ms: p99,
      workerd_growth: growth("workerd"),
      sqld_growth: growth("sqld"),
      refused: measured.sent - answered(measured),
      lost,
      duplicated,
      table,
      notes: [
        `${rate} calls a second were asked for during ${minutes} minutes, ${perSecond.toFixed(0)} answered (bar: 1,000 for 10 minutes); at most ${measured.mostOpen} open at once`,
        `added, from when a call was due: p50 ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms (bar: 100), longest ${measured.maxMs.toFixed(0)} ms; the mock endpoint alone ${direct.p50Ms.toFixed(1)} ms, p99 ${direct.p99Ms.toFixed(1)} ms`,
        `other answers: ${others.length === 0 ? "none" : others.map(([status, many]) => `${many} × ${status === 0 ? "none" : status}`).join(", ")}`,
        `${answers} answers, ${rows} rows with status 200, ${counted} counted: ${lost} lost, ${duplicated} duplicated`,
        "growth is that of the second half: allocators and caches fill first",
      ],
    };
  } finally {
    upstream.process.kill();
    await edge.stop();
  }
}

function answered({ statuses }: OpenLoopResult): number {
  return statuses.get(200) ?? 0;
}

function pidOf(command: string): number {
  const found = descendantsOf(process.pid).find((child) => child.command.includes(command));
  if (found === undefined) throw new Error(`${command} is not among this process' children`);
  return found.pid;
}

/** What the store could not take at once waits in the writer's outbox: it is recorded, and is no row yet. */
async function drained({ url }: TestEdge): Promise<void> {
  for (let tries = 0; tries < 600; tries++) {
    const metrics = await (await fetch(`${url}/metrics`)).text();
    if (/^fulgur_store_up 1$/m.test(metrics) && /^fulgur_outbox_units 0$/m.test(metrics)) return;
    await pause(100);
  }
  throw new Error("the writer's outbox was not empty a minute after the load");
}

/** Rows with status 200 rollout by rollout, since one question about all would take longer than a read may. */
async function counts({ store: { db } }: TestEdge): Promise<{ rows: number; counted: number }> {
  const rollouts = await db.all<{ id: string }>(sql`select id from rollouts`);
  let rows = 0;
  for (const { id } of rollouts) {
    rows += (
      await db.get<{ rows: number }>(
        sql`select count(*) as rows from calls where rollout_id = ${id} and http_status = 200 and trainable = 1`,
      )
    ).rows;
  }
  const { failed } = await db.get<{ failed: number }>(sql`select (select count(*) from calls) - ${rows} as failed`);
  const { calls } = await db.get<{ calls: number }>(sql`select sum(calls) as calls from usage`);
  return { rows, counted: calls - failed };
}

async function rolloutHeaders(edge: TestEdge): Promise<Record<string, string>[]> {
  const headers: Record<string, string>[] = [];
  for (let at = 0; at < ROLLOUTS; at++) {
    const { token } = await edge.rollout("train", { caps: { maxCalls: 10_000, maxTokens: 10_000_000 } });
    headers.push({ authorization: `Bearer ${token}` });
  }
  return headers;
}

function requestBody(): string {
  return JSON.stringify({
    model: "gpt-4o-mini",
    messages: [
      { role: "system", content: `You book flights. ${"Look first, then answer in one line. ".repeat(15)}` },
      { role: "user", content: 'Find "Ann Lee" a flight from "Rome" to "Oslo".' },
    ],
    max_tokens: RESPONSE_TOKENS,
  });
}

async function startUpstream(): Promise<{ readonly url: string; readonly process: ChildProcess }> {
  const script = join(import.meta.dirname, "proxy-parts/upstream.ts");
  const child = spawn(process.execPath, [script, String(RESPONSE_TOKENS), String(PROMPT_TOKENS)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [line] = (await once(createInterface({ input: child.stdout }), "line")) as [string];
  return { url: line, process: child };
}

function positive(flag: string, given: unknown): number {
  const value = Number(given);
  if (value > 0 && Number.isFinite(value)) return value;
  throw new Error(`--${flag} takes a number above 0, not ${String(given)}`);
}
