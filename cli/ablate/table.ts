import { columns } from "../terminal/columns.ts";
import { duration, percent } from "../terminal/format.ts";
import type { Style } from "../terminal/style.ts";
import type { ArmResult, Spread } from "./results.ts";

/**
 * The arms side by side, the one that earned most in green: mean ± standard deviation over the seeds.
 * @param firstToolName what the share of first tool calls is called, such as `memory first`
 */
export function ablationTable(arms: readonly ArmResult[], firstToolName: string, style: Style): string {
  const best = Math.max(...arms.map(({ reward }) => reward?.mean ?? -Infinity));
  const number = (digits: number) => (value: number) => value.toFixed(digits);
  return columns(
    ["ARM", "SEEDS", "REWARD", firstToolName.toUpperCase(), "CORRECT", "TIME OF STEPS", "ROLLOUTS/S"],
    arms.map(({ arm, runs, reward, firstTool, correct, seconds, rolloutsPerSecond }) => [
      style.bold(arm.name),
      String(runs.length),
      (reward?.mean === best ? style.green : (text: string) => text)(plusMinus(reward, number(3))),
      plusMinus(firstTool, percent),
      plusMinus(correct, percent),
      plusMinus(seconds, duration),
      plusMinus(rolloutsPerSecond, number(1)),
    ]),
    style,
  );
}

function plusMinus(found: Spread | undefined, format: (value: number) => string): string {
  if (found === undefined) return "–";
  return found.sd === null ? format(found.mean) : `${format(found.mean)} ± ${format(found.sd)}`;
}
