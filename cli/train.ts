import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import type { RunEvent } from "#shared/run-events.ts";
import type { Installation } from "./installation.ts";
import type { LocalTask } from "./local-tasks.ts";
import { PAUSED, trainerPart } from "./parts/trainer.ts";
import type { CurrentRun, RunChoice } from "./run-choice.ts";
import { writeWhole, type StateDir } from "./state.ts";
import type { Supervisor } from "./supervisor.ts";
import { curveSvg } from "./terminal/curve.ts";
import { followRun } from "./terminal/follow-run.ts";
import { pngOf } from "./terminal/png.ts";
import type { Screen } from "./terminal/screen.ts";
import { summaryTable } from "./terminal/summary-table.ts";
import { summarySchema, type Summary } from "./terminal/summary.ts";
import { checkSettings, settingsArgs } from "./trainer-flags.ts";

export interface TrainOptions {
  readonly choice: RunChoice;
  readonly taskName: string;
  readonly task: LocalTask;
  readonly settings: CurrentRun["settings"];
  readonly state: StateDir;
  readonly installation: Installation;
  readonly supervisor: Supervisor;
  readonly screen: Screen;
}

/**
 * Runs the trainer until its run is done, then shows what came of it; a finished run is only shown again, and a paused one
 * has nothing to show yet.
 * @throws FulgurError ERR_INTERNAL when the trainer ends without a summary
 */
export async function train(options: TrainOptions): Promise<"finished" | "paused"> {
  const { choice, taskName, task, settings, state, installation, supervisor, screen } = options;
  const run: CurrentRun = choice.type === "new" ? { run_id: newId("run"), task: taskName, settings } : choice.run;
  const folder = join(state.runs, run.run_id);
  if (choice.type === "finished") {
    screen.line(`run ${screen.style.bold(run.run_id)} has finished; --new begins another`);
  } else {
    await writeWhole(join(state.runs, "current.json"), JSON.stringify(run));
    const onEvent = followRun({ screen, firstToolName: `${task.watchFirstTool}_first` });
    const trainer = { runId: run.run_id, task, settings: run.settings, state, installation, supervisor, onEvent };
    if ((await runTrainer(trainer)) === "paused") return "paused";
  }
  const summary = await readSummary(folder);
  if (summary === undefined) {
    throw new FulgurError(
      "ERR_INTERNAL",
      `the trainer ended without ${join(folder, "summary.json")}; see ${state.logs}/trainer.log`,
    );
  }
  screen.line();
  screen.line(summaryTable(summary, screen.style));
  const picture = await drawCurve({ folder, summary, installation, runId: run.run_id });
  screen.line(`curve: ${picture}.png, ${picture}.svg`);
  screen.line();
  return "finished";
}

export interface RunTrainerOptions {
  readonly runId: string;
  readonly task: LocalTask;
  readonly settings: CurrentRun["settings"];
  readonly state: StateDir;
  readonly installation: Installation;
  readonly supervisor: Supervisor;
  readonly onEvent: (event: RunEvent) => void;
}

/** Runs the trainer, begun or resumed, until its run has ended or an alarm has paused it; never resolves once the supervisor stops. */
export async function runTrainer(options: RunTrainerOptions): Promise<"finished" | "paused"> {
  const { runId, task, settings, state, installation, supervisor, onEvent } = options;
  const { urls, keys } = installation;
  const { finished } = await supervisor.run(
    trainerPart({
      args: [
        ...["--run", runId],
        ...["--agent", task.agent],
        ...["--policy", task.policy],
        ...["--edge-url", urls.edge],
        ...["--inference-url", urls.inference],
        ...["--store-url", urls.store],
        ...["--state-dir", state.root],
        ...["--watch-first-tool", task.watchFirstTool],
        ...settingsArgs(settings),
      ],
      drainSeconds: checkSettings(settings).drainSeconds,
      env: { FULGUR_STORE_TOKEN: keys.store.readToken },
      logDir: state.logs,
      onEvent,
    }),
  );
  return (await finished) === PAUSED ? "paused" : "finished";
}

/** A run's steps in order, counted from 1 as people do; the store counts from 0. */
export async function stepsOf(
  { client }: Pick<Installation, "client">,
  runId: string,
): Promise<{ step: number; metrics: Record<string, number> }[]> {
  const steps = await client.listSteps(runId);
  return steps.map(({ step, metrics }) => ({ step: step + 1, metrics })).toSorted((a, b) => a.step - b.step);
}

async function drawCurve(options: {
  readonly folder: string;
  readonly summary: Summary;
  readonly installation: Installation;
  readonly runId: string;
}): Promise<string> {
  const { folder, summary, installation, runId } = options;
  const points = (await stepsOf(installation, runId))
    .map(({ step, metrics }) => ({
      step,
      reward: metrics["reward_mean"] ?? Number.NaN,
      firstTool: metrics["first_tool_rate"],
    }))
    .filter(({ reward }) => Number.isFinite(reward));
  const svg = curveSvg(points, summary);
  const picture = join(folder, "curve");
  await writeWhole(`${picture}.svg`, svg);
  await writeWhole(`${picture}.png`, await pngOf(svg));
  return picture;
}

/**
 * A run's summary; undefined while it has none.
 * @throws FulgurError ERR_CONFIG when it is there and cannot be read
 */
export async function readSummary(folder: string): Promise<Summary | undefined> {
  const path = join(folder, "summary.json");
  const text = await readFile(path, "utf8").catch(() => undefined);
  if (text === undefined) return undefined;
  const parsed = summarySchema.safeParse(JSON.parse(text));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new FulgurError(
    "ERR_CONFIG",
    `${path} is not a run's summary: ${issue?.path.join(".")}: ${issue?.message}; --new begins another run`,
  );
}
