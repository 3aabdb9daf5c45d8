import { makeGrid } from "../../../cli/ablate/grid.ts";
import { armResults, type ArmResult, type CellResult } from "../../../cli/ablate/results.ts";

/** Two arms of two seeds, of which the second arm's second seed has not been run. */
export const GRID = makeGrid({ credit: "identical,air" }, "1,2");

/** A run of four steps whose evaluation came to this reward. */
export function cellResult(seed: string, reward: number | null, rewards = [0.1, 0.2, 0.3, 0.4]): CellResult {
  const evaluation = (value: number) => ({ reward: value, memory_first: value / 2, correct: value / 4, n: 64 });
  return {
    run_id: `ru_${seed}`,
    seed,
    settings: { seed },
    summary: {
      task: "flight",
      steps: rewards.length,
      wall_s: 30,
      eval_before: reward === null ? null : evaluation(0.1),
      eval_after: reward === null ? null : evaluation(reward),
      tokens_per_s: { decode: 1, train: 1 },
      calls: 1000,
      rollouts: 600,
      dropped: { evaluation: 128, run_ended: 72, zero_spread: 50 },
    },
    steps: rewards.map((value, at) => ({
      step: at + 1,
      metrics: { reward_mean: value, first_tool_rate: value / 2, seconds_step: 5 },
    })),
  };
}

export function arms(): ArmResult[] {
  const [first, second, third] = GRID.cells;
  return armResults(
    GRID,
    new Map([
      [first?.folder ?? "", cellResult("1", 0.8)],
      [second?.folder ?? "", cellResult("1", 0.5)],
      [third?.folder ?? "", cellResult("2", 0.9, [0.3, 0.4, 0.5, 0.6])],
    ]),
  );
}
