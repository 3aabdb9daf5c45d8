import { stripVTControlCharacters } from "node:util";
import { compact, duration, percent, words } from "./format.ts";
import { sparkline } from "./sparkline.ts";
import type { Style } from "./style.ts";

/** One finished training step, with the metrics of docs/METRICS.md. */
export interface StepFacts {
  readonly step: number;
  readonly steps: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly secondsLeft: number;
}

export interface StepLineOptions {
  readonly style: Style;
  readonly columns: number;
  /** Mean rewards of the steps so far, this one included. */
  readonly rewards: readonly number[];
  /** What the share of first tool calls is called, such as `memory_first`. */
  readonly firstToolName: string;
}

/**
 * A training step in one line: what is learnt first, how healthy it is next, speed last. Fields that do not fit the
 * terminal's width are left out from the right; a metric that the trainer did not send is left out too.
 */
export function stepLine(facts: StepFacts, options: StepLineOptions): string {
  const { style, columns, rewards, firstToolName } = options;
  const { step, steps, metrics, secondsLeft } = facts;
  const value = (name: string, format: (value: number) => string, label: string): string | undefined => {
    const found = metrics[name];
    return found === undefined ? undefined : `${style.dim(label)} ${format(found)}`;
  };
  const speeds = ["tokens_per_s_decode", "tokens_per_s_train"].map((name) => metrics[name]);
  const [decode, train] = speeds;

  const fields = [
    `${style.dim("step")} ${style.bold(`${String(step).padStart(String(steps).length)}/${steps}`)}`,
    value("reward_mean", (reward) => style.green(reward.toFixed(3).padStart(6)), "reward"),
    value("first_tool_rate", (rate) => style.cyan(percent(rate).padStart(4)), words(firstToolName)),
    sparkline(rewards),
    `${style.dim("left")} ${duration(secondsLeft)}`,
    value("advantage_spread", (spread) => spread.toFixed(2), "spread"),
    value("kl_behaviour", (kl) => kl.toExponential(1), "KL"),
    value("staleness_mean", (staleness) => staleness.toFixed(1), "stale"),
    decode === undefined || train === undefined
      ? undefined
      : `${style.dim("tokens/s")} ${compact(decode)} out, ${compact(train)} trained`,
  ].filter((field) => field !== undefined);

  let line = "";
  let width = 0;
  for (const field of fields) {
    const added = stripVTControlCharacters(field).length + 2;
    if (width > 0 && width + added > columns) break;
    line += width === 0 ? field : `  ${field}`;
    width += added;
  }
  return line;
}
