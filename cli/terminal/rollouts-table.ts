import Table from "cli-table3";
import type { RolloutView } from "#shared/wire.ts";
import { duration, words } from "./format.ts";
import type { Style } from "./style.ts";

/** Rollouts as a table without borders, one line each: what it was, how it ended, what became of it. */
export function rolloutsTable(
  rollouts: readonly RolloutView[],
  { now, style }: { readonly now: number; readonly style: Style },
): string {
  if (rollouts.length === 0) return "no rollouts yet; npm start makes some, or an agent with a key from fulgur token";
  const table = new Table({
    head: ["ROLLOUT", "AGENT", "MODE", "STATUS", "REWARD", "TOOLS", "BECAME", "AGE"].map(style.dim),
    chars: NO_BORDERS,
    style: { head: [], border: [], "padding-left": 0, "padding-right": 2 },
    colAligns: ["left", "left", "left", "left", "right", "left", "left", "right"],
  });
  for (const rollout of rollouts) {
    table.push([
      rollout.id,
      rollout.agent,
      rollout.pin === null ? rollout.mode : `${rollout.mode} ${rollout.pin}`,
      statusOf(rollout, style),
      rollout.reward?.toFixed(3) ?? "–",
      rollout.outcome?.tools.join(" → ") ?? "",
      becameOf(rollout),
      duration((now - rollout.createdAt) / 1000),
    ]);
  }
  return table.toString();
}

/** For cli-table3: columns by space alone. */
export const NO_BORDERS = Object.fromEntries(
  ["top", "top-mid", "top-left", "top-right", "bottom", "bottom-mid", "bottom-left", "bottom-right"]
    .concat(["left", "left-mid", "mid", "mid-mid", "right", "right-mid", "middle"])
    .map((place) => [place, ""]),
);

function statusOf({ status, attempt }: RolloutView, style: Style): string {
  const colour = {
    finished: style.green,
    failed: style.red,
    cancelled: style.yellow,
    running: style.cyan,
    queued: style.dim,
  };
  return colour[status](attempt > 1 ? `${status} (attempt ${attempt})` : status);
}

/** `trained`, `dropped: stale`, or nothing yet. */
export function becameOf({ disposition, dropReason }: Pick<RolloutView, "disposition" | "dropReason">): string {
  if (disposition === null) return "";
  return dropReason === null ? disposition : `${disposition}: ${words(dropReason)}`;
}
