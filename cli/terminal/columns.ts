import Table from "cli-table3";
import { NO_BORDERS } from "./rollouts-table.ts";
import type { Style } from "./style.ts";

/** Rows under their heads, in columns by space alone. */
export function columns(head: readonly string[], rows: readonly (readonly string[])[], style: Style): string {
  const drawn = new Table({
    head: head.map(style.dim),
    chars: NO_BORDERS,
    style: { head: [], border: [], "padding-left": 0, "padding-right": 2 },
  });
  for (const row of rows) drawn.push([...row]);
  return drawn.toString();
}

/** A time as `2026-11-21 12:30`, UTC. */
export function minuteOf(time: number): string {
  return new Date(time).toISOString().slice(0, 16).replace("T", " ");
}
