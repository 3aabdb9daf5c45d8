import { expect, test } from "vitest";
import { PLAIN } from "../../../cli/terminal/style.ts";
import { summaryTable } from "../../../cli/terminal/summary-table.ts";
import { comparisons, summarySchema, type Summary } from "../../../cli/terminal/summary.ts";

const summary: Summary = {
  task: "flight",
  steps: 60,
  wall_s: 412,
  eval_before: { reward: 0.121, reward_ci: [0.09, 0.15], memory_first: 0.31, memory_first_ci: [0.27, 0.35], n: 512 },
  eval_after: { reward: 0.53, reward_ci: [0.5, 0.56], memory_first: 0.97, memory_first_ci: [0.95, 0.98], n: 511 },
  tokens_per_s: { decode: 2100, train: 3400 },
  calls: 23_040,
  rollouts: 7680,
  dropped: { zero_spread: 64, stale: 0 },
};

test("a summary as the trainer writes it is read, its numbers compared in the file's order", () => {
  expect(comparisons(summarySchema.parse(summary)).map(({ name }) => name)).toEqual(["reward", "memory_first"]);
});

test("the table has both evaluations with their intervals, the change, and what it took", () => {
  const text = summaryTable(summary, PLAIN);
  expect(text).toMatch(/reward +│ +0\.121 {2}\[0\.090, 0\.150\] │ +0\.530 {2}\[0\.500, 0\.560\] │ +\+0\.41 │/);
  expect(text).toMatch(/memory first +│ +31% {2}\[27%, 35%\] │ +97% {2}\[95%, 98%\] │ \+66 points │/);
  expect(text).toMatch(/evaluation rollouts +│ +512 │ +511 │/);
  expect(text).toContain("60 steps in 6m52s, 7680 rollouts, 23040 calls; tokens/s: 2.1k generated, 3.4k trained");
  expect(text.endsWith("not trained on: 64 zero spread")).toBe(true);
});
