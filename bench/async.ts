import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { seedTask, startInstallation } from "../cli/installation.ts";
import { FLIGHT_AGENT, LOCAL_TASKS } from "../cli/local-tasks.ts";
import { startReaper } from "../cli/reaper.ts";
import { makeStateDir, stateDir } from "../cli/state.ts";
import { createSupervisor } from "../cli/supervisor.ts";
import { freePortBase } from "../test/support/installation.ts";
import { runArm, type ArmFigures } from "./async-parts/arm.ts";
import { LONGEST, startSlowFlight } from "./async-parts/slow-flight.ts";
import type { BenchResult } from "./result.ts";

/**
 * What generating rollouts beside training is worth: the flight task on a whole installation, in turns strictly on-policy
 * (K = 0) and with samples up to four versions old (K = 4), with tools that answer at once and with tools that take time. All
 * parts share the machine's cores.
 */
export const name = "async";
export const about = "rollouts/s at K = 0 and K = 4, with instant tools and with tools that take time";
export const options = {
  case: { type: "string" },
  rounds: { type: "string" },
  steps: { type: "string" },
  groups: { type: "string" },
  threads: { type: "string" },
  "tool-ms": { type: "string" },
} as const;

/** The agent of each case. */
const AGENTS = { instant: "flight", slow: "slow-flight" } as const;
type Case = keyof typeof AGENTS;

const STALENESS = [0, 4] as const;
const GROUP_SIZE = 8;
const SLOW_TASKS = 512;
/** Enough for K = 4 to fill its line. */
const LEAD_IN = 3;
/** The dispatcher notices within five seconds that the rollouts of the arm before were dropped. */
const SETTLE_MS = 6000;

export interface AsyncBenchResult extends BenchResult {
  /** Rollouts a second at K = 4 over those at K = 0, medians over the rounds. Bar: 1.5. */
  readonly ratio_instant: number | null;
  readonly ratio_slow: number | null;
}

interface Measured extends ArmFigures {
  readonly case: Case;
  readonly maxStaleness: number;
}

/** @throws Error for a mistaken flag, or when a trainer ends by itself */
export async function run(flags: Readonly<Record<string, unknown>>): Promise<AsyncBenchResult> {
  const cases = chosen(flags["case"]);
  const rounds = whole("rounds", flags["rounds"] ?? 1);
  const steps = whole("steps", flags["steps"] ?? 8);
  const groups = whole("groups", flags["groups"] ?? 16);
  const threads = whole("threads", flags["threads"] ?? 1);
  const toolMs = whole("tool-ms", flags["tool-ms"] ?? 300);
  const measured = await measure({ cases, rounds, steps, groups, threads, toolMs });
  const rows = cases.flatMap((each) =>
    STALENESS.map((maxStaleness) => ({
      case: each,
      maxStaleness,
      runs: measured.filter((one) => one.case === each && one.maxStaleness === maxStaleness),
    })),
  );
  const ratioOf = (wanted: Case): number | null => {
    const [fresh, stale] = STALENESS.map((maxStaleness) =>
      rows.find((row) => row.case === wanted && row.maxStaleness === maxStaleness),
    );
    if (fresh === undefined || stale === undefined) return null;
    return middle(stale.runs, "rolloutsPerSecond") / middle(fresh.runs, "rolloutsPerSecond");
  };
  return {
    name,
    ratio: null,
    ratio_instant: ratioOf("instant"),
    ratio_slow: ratioOf("slow"),
    table: rows.map(({ case: tools, maxStaleness, runs }) => ({
      tools,
      K: maxStaleness,
      "rollouts/s": middle(runs, "rolloutsPerSecond"),
      "over K = 0": maxStaleness === 0 ? null : ratioOf(tools),
      "s a step": middle(runs, "stepSeconds"),
      wait: middle(runs, "waitSeconds"),
      train: middle(runs, "trainSeconds"),
      checkpoint: middle(runs, "checkpointSeconds"),
      publish: middle(runs, "publishSeconds"),
      staleness: middle(runs, "staleness"),
      ...Object.fromEntries(
        Object.keys(runs[0]?.cores ?? {}).map((process) => [
          `${process} cores`,
          median(runs.map(({ cores }) => cores[process] ?? 0)),
        ]),
      ),
    })),
    notes: [
      `${steps} steps of ${groups} tasks × ${GROUP_SIZE} after ${LEAD_IN} that are not counted, ${rounds} in turns (medians); bar: 1.5 times the rollouts of K = 0`,
      `instant: ${FLIGHT_AGENT.concurrency} agents at once, whose tools answer at once; slow: ${groups * GROUP_SIZE} at once, whose tools take ${toolMs} ms, log-normal, ${Math.round(toolMs * LONGEST)} ms at most`,
      `the training engine on ${threads} of ${availableParallelism()} cores`,
      "seconds are those of a step: waiting for its rollouts, training (scoring old samples among it), writing the checkpoint, publishing the version; staleness in versions",
    ],
  };
}

async function measure(options: {
  readonly cases: readonly Case[];
  readonly rounds: number;
  readonly steps: number;
  readonly groups: number;
  readonly threads: number;
  readonly toolMs: number;
}): Promise<Measured[]> {
  const { cases, rounds, steps, groups, threads, toolMs } = options;
  const task = LOCAL_TASKS["flight"];
  if (task === undefined) throw new Error("there is no task flight");
  const folder = await mkdtemp(join(tmpdir(), "fulgur-async-"));
  const state = stateDir(folder);
  await makeStateDir(state);
  const base = await freePortBase();
  const slow = await startSlowFlight(toolMs, 1);
  const supervisor = createSupervisor({ reaper: startReaper(), onEvent: () => undefined });
  try {
    const installation = await startInstallation({
      state,
      ports: { edge: base, inference: base + 1, store: base + 2 },
      task,
      supervisor,
      onListening: () => undefined,
    });
    const { client } = installation;
    await seedTask(client, { task, base: installation.base, valTasks: 0 });
    const { binding: _, ...settings } = FLIGHT_AGENT;
    await client.putAgent(AGENTS.slow, { ...settings, url: slow.url, concurrency: groups * GROUP_SIZE });
    await client.createTasks(
      Array.from({ length: SLOW_TASKS }, (_each, index) => {
        const made = task.makeTask("train", index);
        return { ...made, id: `slow-${made.id}`, agent: AGENTS.slow };
      }),
    );
    const measured: Measured[] = [];
    for (let round = 0; round < rounds; round += 1) {
      for (const each of cases) {
        // The one that goes first takes turns too.
        for (const maxStaleness of round % 2 === 0 ? STALENESS : STALENESS.toReversed()) {
          if (measured.length > 0) await pause(SETTLE_MS);
          const figures = await runArm(
            { state, installation },
            {
              run: `${each}-${maxStaleness}-${round}`,
              agent: AGENTS[each],
              ...{ maxStaleness, steps, leadIn: LEAD_IN },
              flags: [
                ...["--groups", String(groups), "--group-size", String(GROUP_SIZE)],
                ...["--threads", String(threads)],
              ],
            },
          );
          measured.push({ case: each, maxStaleness, ...figures });
          console.log(`${each}, K = ${maxStaleness}: ${figures.rolloutsPerSecond.toFixed(1)} rollouts/s`);
        }
      }
    }
    return measured;
  } finally {
    await supervisor.stop();
    await slow.stop();
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

function chosen(given: unknown): readonly Case[] {
  const all = ["instant", "slow"] as const;
  if (given === undefined) return all;
  const found = all.filter((each) => each === given);
  if (found.length === 0) throw new Error(`--case takes ${all.join(" or ")}`);
  return found;
}

function middle(runs: readonly Measured[], figure: Exclude<keyof ArmFigures, "cores">): number {
  return median(runs.map((run) => run[figure]));
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const [low, high] = [sorted[Math.floor((sorted.length - 1) / 2)], sorted[Math.ceil((sorted.length - 1) / 2)]];
  return ((low ?? Number.NaN) + (high ?? Number.NaN)) / 2;
}

function whole(flag: string, given: unknown): number {
  const value = Number(given);
  if (Number.isInteger(value) && value > 0) return value;
  throw new Error(`--${flag} takes a whole number above 0, not ${String(given)}`);
}
