import { mkdir, open, rename } from "node:fs/promises";
import { dirname } from "node:path";
import type { Evaluation } from "#shared/run-events.ts";
import type { RunTotals } from "./records.ts";
import type { LoopState } from "./release/checkpoint.ts";

export interface SummaryFacts {
  readonly task: string;
  readonly watchFirstTool: string;
  readonly state: LoopState;
  readonly before: Evaluation | null;
  readonly after: Evaluation | null;
  readonly totals: RunTotals;
}

/**
 * What `summary.json` holds: `{ task, steps, wall_s, eval_before, eval_after, tokens_per_s, calls, rollouts, dropped }`,
 * with `train_s`, the part of `wall_s` that the steps took.
 * An evaluation is `{ reward, memory_first, n, … }` with the watched tool's name in its key, and each mean's 95%
 * interval beside it as `…_ci`.
 */
export function summaryOf({ task, watchFirstTool, state, before, after, totals }: SummaryFacts): object {
  const { wallSeconds, stepSeconds, trainedTokens, trainSeconds, decodedTokens, decodeSeconds } = state.sums;
  return {
    task,
    run: state.run,
    steps: state.step,
    wall_s: rounded(wallSeconds),
    train_s: rounded(stepSeconds),
    eval_before: before === null ? null : evaluationOf(before, watchFirstTool),
    eval_after: after === null ? null : evaluationOf(after, watchFirstTool),
    tokens_per_s: { decode: rate(decodedTokens, decodeSeconds), train: rate(trainedTokens, trainSeconds) },
    calls: totals.calls,
    rollouts: totals.rollouts,
    dropped: totals.dropped,
  };
}

/** Writes JSON aside and renames it, so that a reader sees the old text or the new one. */
export async function writeJson(path: string, value: unknown): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  const file = await open(`${path}.part`, "w");
  try {
    await file.writeFile(`${JSON.stringify(value, null, 2)}\n`);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(`${path}.part`, path);
}

function evaluationOf({ version, reward, first_tool, correct, n, failed, wall_s }: Evaluation, tool: string): object {
  return {
    version,
    reward: reward.mean,
    reward_ci: [reward.low, reward.high],
    [`${tool}_first`]: first_tool.mean,
    [`${tool}_first_ci`]: [first_tool.low, first_tool.high],
    correct: correct.mean,
    correct_ci: [correct.low, correct.high],
    n,
    failed,
    wall_s: rounded(wall_s),
  };
}

function rate(tokens: number, seconds: number): number {
  return seconds === 0 ? 0 : Math.round(tokens / seconds);
}

function rounded(seconds: number): number {
  return Math.round(seconds * 10) / 10;
}
