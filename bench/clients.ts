import type { BenchResult } from "./result.ts";
import { runClients } from "./clients-parts/run-clients.ts";

/**
 * Hundreds of scripted clients at once against a whole installation that trains on what they do: whether every rollout
 * ends with a disposition, and whether anything's memory grows with their number. Clients, edge, store, inference and
 * trainer share the machine.
 */
export const name = "clients";
export const about = "hundreds of clients and the trainer at once: dispositions, and memory";
export const options = { clients: { type: "string" }, rollouts: { type: "string" }, idle: { type: "string" } } as const;

export interface ClientsBenchResult extends BenchResult {
  readonly clients: number;
  readonly rollouts: number;
  readonly rollouts_per_second: number;
  /** Bar: 0. */
  readonly without_disposition: number;
}

/** @throws Error when a rollout has no disposition, or the run did not end as it should */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<ClientsBenchResult> {
  const clients = whole("clients", flags["clients"] ?? 300);
  const wanted = whole("rollouts", flags["rollouts"] ?? 10_000);
  const idle = whole("idle", flags["idle"] ?? 20);
  const report = await runClients({ clients, rollouts: wanted, idleMs: idle * 1000 });
  const { rollouts, wrong, dispositions, calls, seconds, memory, trainer } = report;
  if (trainer.code !== 0) throw new Error(`the trainer ended with ${trainer.code}:\n${trainer.stderr}`);
  if (wrong.length > 0) {
    throw new Error(
      `${wrong.length} of ${rollouts} rollouts ended without a disposition: ${wrong.slice(0, 5).join(", ")} …`,
    );
  }
  const figures = report.clients;
  const refused = Object.entries(figures.refused)
    .map(([status, many]) => `${many} × ${status}`)
    .join(", ");
  return {
    name,
    ratio: null,
    clients,
    rollouts,
    rollouts_per_second: rollouts / seconds,
    without_disposition: wrong.length,
    table: memory,
    notes: [
      `${rollouts} rollouts in ${seconds.toFixed(0)} s (${(rollouts / seconds).toFixed(0)} a second), at most ${figures.mostAtOnce} clients at once of ${clients}; ${figures.runs} attempts, ${figures.mishaps} of which went wrong on purpose; ${calls} calls recorded, refused ${refused === "" ? "none" : refused}`,
      `dispositions: ${Object.entries(dispositions)
        .toSorted(([, a], [, b]) => b - a)
        .map(([what, many]) => `${what} ${many}`)
        .join(", ")}; without one: 0`,
      `memory from the first step on; growth is that of the second half; then ${idle} s of rest`,
    ],
  };
}

function whole(flag: string, given: unknown): number {
  const value = Number(given);
  if (Number.isInteger(value) && value > 0) return value;
  throw new Error(`--${flag} takes a whole number above 0, not ${String(given)}`);
}
