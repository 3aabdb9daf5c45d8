import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sql } from "drizzle-orm";
import { z } from "zod";
import { descendantsOf } from "../test/support/processes.ts";
import { startTestStore, type TestStore } from "../test/support/store.ts";
import { startIngestHost } from "./ingest-parts/host.ts";
import type { LoadReport } from "./ingest-parts/worker.ts";
import { cpuSeconds } from "./ingest-parts/process-figures.ts";
import type { BenchResult } from "./result.ts";

/**
 * What the writer takes: records of 10 KB, each acknowledged only once it is committed, from many loops at once in the
 * Worker that holds the writer, on a real workerd and a real libSQL. Rows are counted afterwards, and the usage counters,
 * which a record that was written twice must not have moved twice.
 */
export const name = "ingest";
export const about = "10 KB records a second through the writer, each committed before it is acknowledged";

const ROUNDS = 3;
const ROUND_MS = 5000;
const LEAD_IN_MS = 1500;
const LOOPS = 256;

export interface IngestBenchResult extends BenchResult {
  readonly records_per_s: number;
  /** Acknowledged and not there. */
  readonly lost: number;
  /** Counted more often than they are there. */
  readonly duplicated: number;
}

const loadReport = z.object({
  acknowledged: z.number(),
  failed: z.number(),
  p50Ms: z.number(),
  p99Ms: z.number(),
  recordBytes: z.number(),
}) satisfies z.ZodType<LoadReport>;

export async function run(): Promise<IngestBenchResult> {
  const stateDir = await mkdtemp(join(tmpdir(), "fulgur-ingest-"));
  const store = await startTestStore();
  const host = await startIngestHost(store, stateDir);
  try {
    const load = async (ms: number): Promise<LoadReport> => {
      const response = await fetch(`${host.url}/load?loops=${LOOPS}&ms=${ms}`);
      return loadReport.parse(await response.json());
    };
    let acknowledged = (await load(LEAD_IN_MS)).acknowledged;
    const rounds = [];
    for (let round = 1; round <= ROUNDS; round++) {
      const [workerd, sqld] = [workerdPid(), store.pid];
      const before = [cpuSeconds(workerd), cpuSeconds(sqld), performance.now()] as const;
      const report = await load(ROUND_MS);
      const seconds = (performance.now() - before[2]) / 1000;
      acknowledged += report.acknowledged;
      rounds.push({
        round,
        "records/s": report.acknowledged / seconds,
        "p50 ms": report.p50Ms,
        "p99 ms": report.p99Ms,
        failed: report.failed,
        "workerd cores": (cpuSeconds(workerd) - before[0]) / seconds,
        "sqld cores": (cpuSeconds(sqld) - before[1]) / seconds,
        bytes: report.recordBytes,
      });
    }
    const { rows, counted } = await counts(store);
    const perSecond = median(rounds.map((round) => round["records/s"]));
    const lost = Math.max(0, acknowledged - rows);
    const duplicated = Math.max(0, counted - rows);
    return {
      name,
      ratio: null,
      records_per_s: perSecond,
      lost,
      duplicated,
      table: rounds,
      notes: [
        `median of ${ROUNDS} rounds of ${ROUND_MS / 1000} s from ${LOOPS} loops: ${Math.round(perSecond)} records a second (bar: 2,500), the load's own cost included`,
        `${acknowledged} acknowledged, ${rows} rows, ${counted} counted: ${lost} lost, ${duplicated} duplicated`,
      ],
    };
  } finally {
    await host.stop();
    await store.stop();
    await rm(stateDir, { recursive: true, force: true });
  }
}

function workerdPid(): number {
  const found = descendantsOf(process.pid).find(({ command }) => command.includes("workerd"));
  if (found === undefined) throw new Error("workerd is not among this process' children");
  return found.pid;
}

async function counts({ db }: TestStore): Promise<{ rows: number; counted: number }> {
  return db.get<{ rows: number; counted: number }>(
    sql`select (select count(*) from calls) as rows, (select sum(calls) from usage) as counted`,
  );
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;
}
