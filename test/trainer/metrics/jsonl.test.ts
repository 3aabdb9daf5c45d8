import { appendFile, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { MetricsJournal } from "../../../trainer/metrics/jsonl.ts";

let dir: string;
let path: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-jsonl-"));
  path = join(dir, "run", "metrics.jsonl");
});
afterEach(async () => {
  await rm(dir, { recursive: true });
});

const point = (step: number) => ({ step, time: step * 1000, metrics: { reward_mean: step / 10, "a/task/é": step } });

/** Opens the journal after some steps, writes others, and closes it. */
async function session(after: number, steps: readonly number[]): Promise<MetricsJournal> {
  const journal = new MetricsJournal(path);
  await journal.open(after);
  for (const step of steps) await journal.write(point(step));
  await journal.close();
  return journal;
}

const stepsWritten = async (): Promise<unknown[]> =>
  (await readFile(path, "utf8"))
    .trimEnd()
    .split("\n")
    .map((line): unknown => JSON.parse(line).step);

it("has a line for each step", async () => {
  await session(0, [1, 2]);
  expect(await readFile(path, "utf8")).toBe(
    '{"step":1,"time":"1970-01-01T00:00:01.000Z","reward_mean":0.1,"a/task/é":1}\n' +
      '{"step":2,"time":"1970-01-01T00:00:02.000Z","reward_mean":0.2,"a/task/é":2}\n',
  );
});

it("goes on where it was, knows what was there, and has no step twice", async () => {
  await session(0, [1, 2]);
  const journal = await session(2, [2, 3]);
  expect(journal.takeHistory()).toEqual([point(1), point(2)]);
  expect(journal.takeHistory()).toEqual([]);
  expect(await stepsWritten()).toEqual([1, 2, 3]);
});

it("takes back a torn line", async () => {
  await session(0, [1, 2]);
  await appendFile(path, '{"step":3,"time":"1970-');
  await session(3, [3]);
  expect(await stepsWritten()).toEqual([1, 2, 3]);
});

it("takes back the steps that the checkpoint does not have", async () => {
  await session(0, [1, 2, 3]);
  const journal = await session(1, [2]);
  expect(journal.takeHistory()).toEqual([point(1)]);
  expect(await stepsWritten()).toEqual([1, 2]);
  await session(0, [1]);
  expect(await stepsWritten()).toEqual([1]);
});
