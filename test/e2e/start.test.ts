import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { allEnded, newFolder, type Folder, type Started } from "../support/installation.ts";

/**
 * The main job on its real parts: `fulgur start --exit` makes the flight agent better. A dozen steps instead of the
 * README's run, so the thresholds are lower than its bars: both numbers must rise clearly beyond their noise.
 */

const STEPS = 12;
const EVAL_TASKS = 192;

const evaluationSchema = z.looseObject({
  reward: z.number(),
  reward_ci: z.tuple([z.number(), z.number()]),
  memory_first: z.number().min(0).max(1),
  memory_first_ci: z.tuple([z.number(), z.number()]),
  n: z.int(),
});

/** The handle that outside checks rely on. */
const summarySchema = z.looseObject({
  task: z.literal("flight"),
  steps: z.literal(STEPS),
  wall_s: z.number().positive(),
  eval_before: evaluationSchema,
  eval_after: evaluationSchema,
  tokens_per_s: z.object({ decode: z.number().positive(), train: z.number().positive() }),
  calls: z.int().positive(),
  rollouts: z.int().positive(),
  dropped: z.record(z.string(), z.int()),
});

let folder: Folder;
let started: Started;
let code: number | null;

beforeAll(async () => {
  folder = await newFolder();
  started = folder.start(["--exit", "--seed", "7", "--steps", String(STEPS), "--eval-tasks", String(EVAL_TASKS)]);
  await started.line(/^step +1\//, 120_000);
  const processes = started.processes();
  code = await started.exit;
  await allEnded(processes);
}, 600_000);
afterAll(() => folder[Symbol.asyncDispose]());

async function summary(): Promise<z.infer<typeof summarySchema>> {
  return summarySchema.parse(await folder.readJson(join(await runFolder(), "summary.json")));
}

async function runFolder(): Promise<string> {
  const { run_id: run } = z.object({ run_id: z.string() }).parse(await folder.readJson("runs/current.json"));
  return join("runs", run);
}

test("it ends with code 0", () => {
  expect({ code, output: started.output() }).toMatchObject({ code: 0 });
});

test("the agent consults its memory first more often, and its reward rises, beyond the noise", async () => {
  const { eval_before: before, eval_after: after } = await summary();
  expect(before.n).toBeGreaterThan(EVAL_TASKS * 0.98);
  expect(after.n).toBeGreaterThan(EVAL_TASKS * 0.98);
  expect(after.memory_first - before.memory_first).toBeGreaterThan(0.2);
  expect(after.memory_first_ci[0]).toBeGreaterThan(before.memory_first_ci[1]);
  expect(after.reward - before.reward).toBeGreaterThan(0.1);
  expect(after.reward_ci[0]).toBeGreaterThan(before.reward_ci[1]);
});

test("the terminal shows both evaluations, a line for each step, the table and the curve's path", async () => {
  const output = started.output();
  expect(output).toMatch(/^before: reward 0\.\d{3} \[.*memory first \d+% \[/m);
  expect(output).toMatch(/^after: reward 0\.\d{3} \[.*memory first \d+% \[/m);
  expect(output.match(/^step +\d+\/12 +reward .* left .* tokens\/s /gm)).toHaveLength(STEPS);
  expect(output).toMatch(/│ memory first +│ +\d+% +\[\d+%, \d+%\] │ +\d+% +\[\d+%, \d+%\] │/);
  expect(output).toContain(`curve: ${join(folder.path, await runFolder())}/curve.png`);
  expect(output).not.toContain("\u001B");
});

test("the curve is there as a picture and as a drawing with a point for each step", async () => {
  const png = await readFile(join(folder.path, await runFolder(), "curve.png"));
  expect(png.subarray(0, 8).toString("hex")).toBe("89504e470d0a1a0a");
  const svg = await readFile(join(folder.path, await runFolder(), "curve.svg"), "utf8");
  const [path] = /(?<=<path d=")M[^"]+/.exec(svg) ?? [];
  expect(path?.match(/[ML]/g)).toHaveLength(STEPS);
});

test("every rollout that was not trained on has its reason", async () => {
  const { rollouts, dropped } = await summary();
  const unexplained = Object.keys(dropped).filter(
    (reason) => !["zero_spread", "evaluation", "run_ended", "stale", "no_trainable_call"].includes(reason),
  );
  expect(unexplained).toEqual([]);
  expect(dropped["evaluation"]).toBe(2 * EVAL_TASKS);
  expect(rollouts).toBeGreaterThan(STEPS * 16 * 8);
});

test("started again it says that the run has finished, shows the table and trains no more", async () => {
  const again = folder.start(["--exit"]);
  expect(await again.exit).toBe(0);
  expect(again.output()).toMatch(/^run ru_\w+ has finished; --new begins another$/m);
  expect(again.output()).toMatch(/│ memory first +│/);
  expect(again.output()).not.toMatch(/^step /m);
}, 120_000);
