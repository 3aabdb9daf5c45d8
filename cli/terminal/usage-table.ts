import Table from "cli-table3";
import type { UsageReport } from "#shared/wire-metering.ts";
import { duration } from "./format.ts";
import { NO_BORDERS } from "./rollouts-table.ts";
import type { Style } from "./style.ts";

/** A usage report: a table per day and model, one per policy, agents' runs, rollouts where asked for, the totals, the budget. */
export function usageText(report: UsageReport, style: Style): string {
  const { usage, models, agents, rollouts, totals, budget, since } = report;
  if (usage.length === 0) return `nothing was used since ${since}`;
  const parts = [
    table(
      ["DAY", "MODEL", "MODE", "CALLS", "PROMPT", "COMPLETION", "COST"],
      usage.map((row) => [row.day, row.model, row.mode, ...counts(row), cost(row.cost)]),
      style,
    ),
    table(
      ["POLICY OR MODEL", "CALLS", "PROMPT", "COMPLETION", "COST"],
      models.map((row) => [row.model, ...counts(row), cost(row.cost)]),
      style,
    ),
    table(
      ["AGENT", "MODE", "RUNS", "TIME"],
      agents.map((row) => [row.agent, row.mode, String(row.invocations), duration(row.wall_ms / 1000)]),
      style,
    ),
  ];
  if (rollouts.length > 0) {
    parts.push(
      table(
        ["ROLLOUT", "AGENT", "MODE", "CALLS", "PROMPT", "COMPLETION", "COST"],
        rollouts.map((row) => [row.rollout_id, row.agent, row.mode, ...counts(row), cost(row.cost)]),
        style,
      ),
    );
  }
  parts.push(
    `since ${since}: ${totals.calls} calls, ${totals.prompt_tokens} + ${totals.completion_tokens} tokens, cost ${cost(totals.cost)}, ${totals.agent_invocations} agent runs in ${duration(totals.wall_ms / 1000)}`,
  );
  if (budget !== null) parts.push(`budget of the month: ${cost(budget.spent)} of ${cost(budget.monthly)} spent`);
  return parts.join("\n\n");
}

/** A price list with its history. */
export function pricesText(
  prices: readonly { model: string; from: string; prompt_per_million: number; completion_per_million: number }[],
  style: Style,
): string {
  if (prices.length === 0) return "no prices yet; fulgur prices set MODEL --prompt 0.5 --completion 1.5";
  return table(
    ["MODEL", "FROM", "PROMPT / M", "COMPLETION / M"],
    prices.map((row) => [row.model, row.from, String(row.prompt_per_million), String(row.completion_per_million)]),
    style,
  );
}

function table(head: readonly string[], rows: readonly (readonly string[])[], style: Style): string {
  const drawn = new Table({
    head: head.map(style.dim),
    chars: NO_BORDERS,
    style: { head: [], border: [], "padding-left": 0, "padding-right": 2 },
  });
  for (const row of rows) drawn.push([...row]);
  return drawn.toString();
}

function counts(row: { calls: number; prompt_tokens: number; completion_tokens: number }): string[] {
  return [row.calls, row.prompt_tokens, row.completion_tokens].map(String);
}

function cost(value: number | null): string {
  return value === null ? "–" : value.toFixed(value >= 1 ? 2 : 4);
}
