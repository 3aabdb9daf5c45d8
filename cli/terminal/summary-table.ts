import Table from "cli-table3";
import { compact, counted, duration, percent, signed, words } from "./format.ts";
import type { Style } from "./style.ts";
import { comparisons, type Measured, type Summary } from "./summary.ts";

/** The table before/after with 95% confidence intervals, and below it what it took. */
export function summaryTable(summary: Summary, style: Style): string {
  const table = new Table({
    head: ["", "before", "after", "change"],
    style: { head: [], border: [], compact: true },
    colAligns: ["left", "right", "right", "right"],
  });
  for (const { name, before, after } of comparisons(summary)) {
    const isShare = name !== "reward";
    const change = after.value - before.value;
    const shown = isShare ? `${signed(change * 100, 0)} points` : signed(change);
    table.push([
      style.bold(words(name)),
      cell(before, isShare),
      cell(after, isShare),
      overlap(before, after) ? shown : (change > 0 ? style.green : style.red)(shown),
    ]);
  }
  const { eval_before: first, eval_after: last } = summary;
  if (first !== null && last !== null) table.push(["evaluation rollouts", String(first.n), String(last.n), ""]);
  const dropped = Object.entries(summary.dropped)
    .filter(([, count]) => count > 0)
    .map(([reason, count]) => `${count} ${words(reason)}`)
    .join(", ");
  return [
    ...(table.length > 0 ? [table.toString()] : []),
    `${counted(summary.steps, "step")} in ${duration(summary.wall_s)}, ${counted(summary.rollouts, "rollout")}, ` +
      `${counted(summary.calls, "call")}; tokens/s: ${compact(summary.tokens_per_s.decode)} generated, ` +
      `${compact(summary.tokens_per_s.train)} trained`,
    ...(dropped === "" ? [] : [`not trained on: ${dropped}`]),
  ].join("\n");
}

function cell({ value, ci }: Measured, isShare: boolean): string {
  const format = isShare ? percent : (number: number) => number.toFixed(3);
  return ci === undefined ? format(value) : `${format(value)}  [${format(ci[0])}, ${format(ci[1])}]`;
}

/** Intervals that overlap (or are not known) show no clear change. */
function overlap(before: Measured, after: Measured): boolean {
  if (before.ci === undefined || after.ci === undefined) return true;
  return before.ci[0] <= after.ci[1] && after.ci[0] <= before.ci[1];
}
