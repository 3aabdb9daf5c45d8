import { z } from "zod";
import { runSettingsSchema } from "../run-choice.ts";
import { summarySchema, type Summary } from "../terminal/summary.ts";
import type { Arm, Cell, Grid } from "./grid.ts";

/** What an ablation has measured: each run as it is kept on disk, and each arm over its seeds. */

/** `cells/<settings>/result.json`, written once the run has ended. */
export const cellResultSchema = z.object({
  run_id: z.string(),
  seed: z.string(),
  settings: runSettingsSchema,
  summary: summarySchema,
  /** Counted from 1, ascending; metrics by the names of docs/METRICS.md. */
  steps: z.array(z.object({ step: z.int().min(1), metrics: z.record(z.string(), z.number()) })),
});
export type CellResult = z.infer<typeof cellResultSchema>;

/** A number over an arm's seeds. */
export interface Spread {
  readonly mean: number;
  /** Standard deviation of the sample; null where there is one seed. */
  readonly sd: number | null;
  readonly values: readonly number[];
}

/** What is compared, of one run; absent where the run does not have it. */
export interface Outcome<Value = number> {
  /** After training, by the evaluation; without one, the mean of the last quarter of the steps. So the next two. */
  readonly reward: Value | undefined;
  /** Share of rollouts whose first tool call is the watched one. */
  readonly firstTool: Value | undefined;
  readonly correct: Value | undefined;
  /** Of the steps, without the evaluations. */
  readonly seconds: Value | undefined;
  readonly rolloutsPerSecond: Value | undefined;
}

/** An arm's finished runs, in numbers. */
export interface ArmResult extends Outcome<Spread> {
  readonly arm: Arm;
  readonly runs: readonly CellResult[];
}

/** A run in numbers. */
export function outcomeOf({ summary, steps }: CellResult): Outcome {
  const seconds = trainSeconds(steps);
  const { evaluation = 0, run_ended: ended = 0 } = summary.dropped;
  // Rollouts that a step has claimed: not those of the evaluations, nor those under way when the run ended.
  const claimed = summary.rollouts - evaluation - ended;
  return {
    reward: summary.eval_after?.reward ?? lastSteps(steps, "reward_mean"),
    firstTool: firstToolOf(summary) ?? lastSteps(steps, "first_tool_rate"),
    correct: evaluated(summary, "correct") ?? lastSteps(steps, "correct_rate"),
    seconds,
    rolloutsPerSecond: seconds === undefined || seconds === 0 ? undefined : claimed / seconds,
  };
}

/** The arms in the grid's order, over the cells that have ended. */
export function armResults({ arms, cells }: Grid, results: ReadonlyMap<Cell["folder"], CellResult>): ArmResult[] {
  return arms.map((arm) => {
    const runs = cells.flatMap((cell) => {
      const result = cell.arm === arm ? results.get(cell.folder) : undefined;
      return result === undefined ? [] : [result];
    });
    const outcomes = runs.map(outcomeOf);
    const over = (name: keyof Outcome): Spread | undefined =>
      spread(outcomes.flatMap((outcome) => outcome[name] ?? []));
    return {
      arm,
      runs,
      reward: over("reward"),
      firstTool: over("firstTool"),
      correct: over("correct"),
      seconds: over("seconds"),
      rolloutsPerSecond: over("rolloutsPerSecond"),
    };
  });
}

/** `results.json` */
export function resultsJson(
  facts: { readonly name: string; readonly task: string; readonly grid: Grid },
  arms: readonly ArmResult[],
): object {
  const { name, task, grid } = facts;
  return {
    name,
    task,
    axes: grid.axes,
    fixed: grid.fixed,
    cells: grid.cells.length,
    cells_finished: arms.reduce((sum, { runs }) => sum + runs.length, 0),
    arms: arms.map(({ arm, runs, reward, firstTool, correct, seconds, rolloutsPerSecond: speed }) => ({
      name: arm.name,
      settings: arm.settings,
      seeds: runs.map(({ seed }) => seed),
      runs: runs.map(({ run_id }) => run_id),
      reward,
      first_tool: firstTool,
      correct,
      seconds,
      rollouts_per_s: speed,
    })),
  };
}

/** Undefined of no values. */
export function spread(values: readonly number[]): Spread | undefined {
  if (values.length === 0) return undefined;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, sd: values.length < 2 ? null : Math.sqrt(squares / (values.length - 1)), values };
}

/** An evaluation names the watched tool: `memory_first`. */
function firstToolOf(summary: Summary): number | undefined {
  const name = Object.keys(summary.eval_after ?? {}).find((key) => key.endsWith("_first"));
  return name === undefined ? undefined : evaluated(summary, name);
}

function evaluated({ eval_after: after }: Summary, name: string): number | undefined {
  const value = after?.[name];
  return typeof value === "number" ? value : undefined;
}

/** Without an evaluation: the mean of a metric over the last quarter of the steps. */
function lastSteps(steps: CellResult["steps"], name: string): number | undefined {
  const values = steps.flatMap(({ metrics }) => metrics[name] ?? []);
  return spread(values.slice(-Math.ceil(values.length / 4)))?.mean;
}

function trainSeconds(steps: CellResult["steps"]): number | undefined {
  if (steps.length === 0) return undefined;
  return steps.reduce((sum, { metrics }) => sum + (metrics["seconds_step"] ?? 0), 0);
}
