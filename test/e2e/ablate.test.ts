import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { allEnded, newFolder, type Folder, type Started } from "../support/installation.ts";

/**
 * `fulgur ablate` on its real parts: stopped after its first run, it goes on with the second and repeats nothing. A step
 * of a few rollouts each: that training works is another test's.
 */

const GRID = ["--credit", "identical,air", "--seeds", "5", "--name", "try"];
const SMALL = ["--steps", "1", "--groups", "2", "--group-size", "4", "--eval-tasks", "8"];

const resultsSchema = z.object({
  cells: z.literal(2),
  cells_finished: z.literal(2),
  arms: z.array(
    z.object({
      name: z.string(),
      seeds: z.tuple([z.literal("5")]),
      runs: z.tuple([z.string()]),
      reward: z.object({ mean: z.number(), sd: z.null() }),
    }),
  ),
});

let folder: Folder;
let first: Started;
let second: Started;
let third: Started;
let codes: (number | null)[];

beforeAll(async () => {
  folder = await newFolder();
  const ablate = (): Started => folder.command(["ablate", ...GRID, ...SMALL]);
  first = ablate();
  await first.line(/^✓ 1\/2 credit identical, seed 5: reward /, 120_000);
  const processes = first.processes();
  first.child.kill("SIGINT");
  const stopped = await first.exit;
  await allEnded(processes);
  second = ablate();
  const ended = await second.exit;
  third = ablate();
  codes = [stopped, ended, await third.exit];
}, 300_000);
afterAll(() => folder[Symbol.asyncDispose]());

async function results(): Promise<z.infer<typeof resultsSchema>> {
  return resultsSchema.parse(await folder.readJson("ablations/try/results.json"));
}

test("it ends with code 0, stopped or not", () => {
  expect({ codes, output: second.output() }).toMatchObject({ codes: [0, 0, 0] });
});

test("stopped, it goes on where it was: what had ended is not run again", async () => {
  expect(first.output()).toContain("stopping; ");
  expect(second.output()).toContain("ablation try: 2 arms, 2 runs, 1 of them ended");
  expect(second.output()).toMatch(/^✓ 2\/2 credit air, seed 5: reward /m);
  expect(second.output()).not.toContain("✓ 1/2");
  const ids = (await results()).arms.flatMap(({ runs }) => runs);
  expect(new Set(ids).size).toBe(2);
  expect((await readdir(join(folder.path, "ablations/try/runs"))).toSorted()).toEqual(ids.toSorted());
});

test("the arms are compared in a table, a file and a picture", async () => {
  expect(second.output()).toMatch(/^ARM +SEEDS +REWARD +MEMORY FIRST +CORRECT +TIME OF STEPS +ROLLOUTS\/S/m);
  expect(second.output()).toMatch(/^credit air +1 +-?\d\.\d{3} +\d+% +\d+% +\d+s +\d+\.\d/m);
  expect((await results()).arms.map(({ name }) => name)).toEqual(["credit identical", "credit air"]);
  const svg = await readFile(join(folder.path, "ablations/try/curves.svg"), "utf8");
  expect(svg.match(/<path d="M/g)).toHaveLength(4);
});

test("once all have ended, it shows them and starts nothing", () => {
  expect(third.output()).toContain("2 of them ended");
  expect(third.output()).toMatch(/^credit identical +1 /m);
  expect(third.output()).not.toContain("✓");
});
