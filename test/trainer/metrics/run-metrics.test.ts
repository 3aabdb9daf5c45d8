import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { AppendFile } from "../../../trainer/metrics/append-file.ts";
import { MetricsJournal } from "../../../trainer/metrics/jsonl.ts";
import { RunMetrics } from "../../../trainer/metrics/run-metrics.ts";
import type { MetricSink, StepPoint } from "../../../trainer/metrics/sink.ts";

let dir: string;
let warnings: string[];
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-metrics-"));
  warnings = [];
});
afterEach(async () => {
  await rm(dir, { recursive: true });
});

function runMetrics(sinks: readonly MetricSink[] = [], path = join(dir, "metrics.jsonl")): RunMetrics {
  return new RunMetrics({
    journal: new MetricsJournal(path),
    sinks,
    warn: (message) => void warnings.push(message),
    clock: () => 1000,
  });
}

/** Notes what it is told, and fails as often as it is asked to. */
function noting(failures: readonly ("open" | "write")[] = []) {
  const noted: unknown[] = [];
  const left = [...failures];
  const take = (what: "open" | "write", value: unknown): void => {
    if (left[0] === what) {
      left.shift();
      throw new Error(`no ${what}`);
    }
    noted.push(value);
  };
  const sink: MetricSink = {
    name: "a sink",
    open: async (after) => take("open", { after }),
    write: async (point: StepPoint) => take("write", point.step),
    close: async () => void noted.push("closed"),
  };
  return { sink, noted };
}

const stepsOf = async (path: string): Promise<unknown[]> =>
  (await readFile(path, "utf8"))
    .trimEnd()
    .split("\n")
    .map((line): unknown => JSON.parse(line).step);

it("tells every sink of every step, and closes them", async () => {
  const { sink, noted } = noting();
  const metrics = runMetrics([sink]);
  await metrics.open({ step: 0, last: null, tasks: 1 });
  await metrics.write(1, { loss: 1 });
  await metrics.write(2, { loss: 2 });
  await metrics.close();
  expect(noted).toEqual([{ after: 0 }, 1, 2, "closed"]);
  expect(await stepsOf(join(dir, "metrics.jsonl"))).toEqual([1, 2]);
  expect(warnings).toEqual([]);
});

it.each([
  [64, { loss: 1, "reward_mean/task/t1": 0.5 }],
  [65, { loss: 1 }],
])(
  "keeps the values by task of %i tasks from sinks that have a series for each, if they are many",
  async (tasks, seen) => {
    const points: unknown[] = [];
    const sink: MetricSink = {
      name: "a sink",
      open: async () => {},
      write: async ({ metrics }) => void points.push(metrics),
      close: async () => {},
    };
    const metrics = runMetrics([sink]);
    await metrics.open({ step: 0, last: null, tasks });
    await metrics.write(1, { loss: 1, "reward_mean/task/t1": 0.5 });
    await metrics.close();
    expect(points).toEqual([seen]);
    expect(await readFile(join(dir, "metrics.jsonl"), "utf8")).toContain('"reward_mean/task/t1":0.5');
  },
);

it("makes up for a step that was kept and not told of", async () => {
  const first = runMetrics();
  await first.open({ step: 0, last: null, tasks: 1 });
  await first.write(1, { loss: 1 });
  await first.close();
  const { sink, noted } = noting();
  const second = runMetrics([sink]);
  await second.open({ step: 2, last: { loss: 2 }, tasks: 1 });
  await second.write(3, { loss: 3 });
  await second.close();
  expect(noted).toEqual([{ after: 2 }, 2, 3, "closed"]);
  expect(await stepsOf(join(dir, "metrics.jsonl"))).toEqual([1, 2, 3]);
});

it("remembers the alarms of the steps before, so that a run which goes on after one is not stopped by it again", async () => {
  const bad = { ess: 0.1 };
  const first = runMetrics();
  await first.open({ step: 0, last: null, tasks: 1 });
  expect(first.observe(bad).map(({ name }) => name)).toEqual(["ess"]);
  await first.write(1, bad);
  await first.close();
  const second = runMetrics();
  await second.open({ step: 1, last: bad, tasks: 1 });
  expect(second.observe(bad)).toEqual([]);
  await second.close();
  const other = runMetrics([], join(dir, "other.jsonl"));
  await other.open({ step: 0, last: null, tasks: 1 });
  expect(other.observe(bad)).toHaveLength(1);
  await other.close();
});

it("warns once of a sink that fails, and goes on with it when it can write again", async () => {
  const { sink, noted } = noting(["write", "write"]);
  const metrics = runMetrics([sink]);
  await metrics.open({ step: 0, last: null, tasks: 1 });
  for (const step of [1, 2, 3]) await metrics.write(step, {});
  await metrics.close();
  expect(noted).toEqual([{ after: 0 }, 3, "closed"]);
  expect(warnings).toEqual(["a sink lacks metrics of this run from here on: no write; training goes on"]);
  expect(await stepsOf(join(dir, "metrics.jsonl"))).toEqual([1, 2, 3]);
});

it("leaves alone what does not open", async () => {
  const { sink, noted } = noting(["open"]);
  const metrics = runMetrics([sink]);
  await metrics.open({ step: 0, last: null, tasks: 1 });
  await metrics.write(1, {});
  await metrics.close();
  expect(noted).toEqual([]);
  expect(warnings).toEqual(["a sink gets no metrics of this run: no open; training goes on"]);
});

it("lets a full disk end nothing", async () => {
  const file = new AppendFile("/dev/full");
  const metrics = runMetrics([
    {
      name: "a file",
      open: () => file.open(),
      write: ({ step }) => file.append(Uint8Array.of(step)),
      close: () => file.close(),
    },
  ]);
  await metrics.open({ step: 0, last: null, tasks: 1 });
  await metrics.write(1, { loss: 1 });
  await metrics.write(2, { loss: 2 });
  await metrics.close();
  expect(warnings).toHaveLength(1);
  expect(warnings[0]).toMatch(/^a file lacks metrics of this run from here on: ENOSPC/);
  expect(await stepsOf(join(dir, "metrics.jsonl"))).toEqual([1, 2]);
});
