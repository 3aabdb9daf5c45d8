import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import type { RunEvent } from "#shared/run-events.ts";
import type { AblateFlags } from "../commands/ablate.ts";
import { proveBaseVersion, seedTask, startInstallation, type Installation } from "../installation.ts";
import { LOCAL_TASKS } from "../local-tasks.ts";
import { localUrl, portsFrom, requireFreePorts } from "../ports.ts";
import { startReaper } from "../reaper.ts";
import { claimStateDir, makeStateDir, stateDir, writeWhole } from "../state.ts";
import { stopSignal } from "../stop-signal.ts";
import { createSupervisor } from "../supervisor.ts";
import { counted, duration, percent, words } from "../terminal/format.ts";
import { pngOf } from "../terminal/png.ts";
import { createScreen } from "../terminal/screen.ts";
import { supervisorLine } from "../terminal/supervisor-line.ts";
import { readSummary, runTrainer, stepsOf } from "../train.ts";
import { checkSettings } from "../trainer-flags.ts";
import { beginCell, cellCutShort, endCell, endedCells } from "./cell-folder.ts";
import type { Cell, Grid } from "./grid.ts";
import { ablationSvg } from "./plot.ts";
import { armResults, outcomeOf, resultsJson, type CellResult } from "./results.ts";
import { ablationTable } from "./table.ts";
import { timeLeft } from "./time-left.ts";

export interface AblateOptions {
  readonly flags: AblateFlags;
  readonly grid: Grid;
  readonly name: string;
}

/**
 * Runs the cells of a grid that have not ended yet, one after the other on one installation of their own, and shows all
 * of them side by side. Every run begins at the base; one that was cut short is resumed. What has ended is in
 * `results.json` and `curves.svg` after each run.
 * @throws FulgurError what went wrong, once everything has been stopped; ended runs are kept
 */
export async function ablate({ flags, grid, name }: AblateOptions): Promise<void> {
  const task = LOCAL_TASKS[flags.task];
  if (task === undefined) throw new FulgurError("ERR_CONFIG", `there is no task ${flags.task}`);
  const ports = portsFrom(flags.portBase);
  // A state of its own: the versions of an ablation are no versions of the policy that `start` trains.
  const state = stateDir(join(flags.stateDir, "ablations", name));
  await makeStateDir(state);
  const release = await claimStateDir(state, localUrl(ports.edge));
  const firstToolName = words(`${task.watchFirstTool}_first`);

  const screen = createScreen({ out: process.stdout, env: process.env });
  const { style } = screen;
  const stop = stopSignal();
  const supervisor = createSupervisor({
    reaper: startReaper(),
    onEvent: (event) => screen.line(supervisorLine(event, style)),
  });
  stop.onSecond(() => {
    supervisor.kill();
    process.exit(130);
  });

  const runCell = async (
    cell: Cell,
    installation: Installation,
    onEvent: (event: RunEvent) => void,
  ): Promise<CellResult> => {
    const { seed, settings } = cell;
    const runId = await beginCell(state, cell);
    await runTrainer({ runId, task, settings, state, installation, supervisor, onEvent });
    const summary = await readSummary(join(state.runs, runId));
    if (summary === undefined) {
      throw new FulgurError("ERR_INTERNAL", `run ${runId} ended without a summary; see ${state.logs}/trainer.log`);
    }
    const result = { run_id: runId, seed, settings, summary, steps: await stepsOf(installation, runId) };
    await endCell(state, cell, result);
    return result;
  };

  const show = async (results: ReadonlyMap<string, CellResult>): Promise<string> => {
    const arms = armResults(grid, results);
    const fixed = Object.entries(grid.fixed).map(([flag, value]) => (value === true ? flag : `${flag} ${value}`));
    const svg = ablationSvg(arms, {
      title: `${name}: the ${flags.task} agent, learning`,
      subtitle: ["line: mean over seeds, band: lowest to highest seed", ...fixed].join(" · "),
      firstToolName,
    });
    await writeWhole(
      join(state.root, "results.json"),
      `${JSON.stringify(resultsJson({ name, task: flags.task, grid }, arms), null, 2)}\n`,
    );
    await writeWhole(join(state.root, "curves.svg"), svg);
    await writeWhole(join(state.root, "curves.png"), await pngOf(svg));
    return ablationTable(arms, firstToolName, style);
  };

  const work = async (): Promise<void> => {
    const results = await endedCells(state, grid);
    const unfinished = grid.cells.filter((cell) => !results.has(cell.folder));
    const first = await cellCutShort(state, unfinished);
    const pending = [...(first === undefined ? [] : [first]), ...unfinished.filter((cell) => cell !== first)];
    screen.line(
      `ablation ${style.bold(name)}: ${counted(grid.arms.length, "arm")}, ${counted(grid.cells.length, "run")}` +
        (results.size > 0 ? `, ${results.size} of them ended` : ""),
    );
    if (pending.length > 0) {
      await requireFreePorts(ports);
      const installation = await startInstallation({ state, ports, task, supervisor, onListening: () => {} });
      const valTasks = Math.max(...grid.cells.map((cell) => checkSettings(cell.settings).evalTasks));
      await seedTask(installation.client, { task, base: installation.base, valTasks });
      await proveBaseVersion(installation, `${task.policy}@0`, installation.base.artifact);
      const took = [...results.values()].map(({ summary }) => summary.wall_s);
      for (const [index, cell] of pending.entries()) {
        const label = `${results.size + 1}/${grid.cells.length} ${cell.arm.name}, seed ${cell.seed}`;
        const startedAt = performance.now();
        const elapsed = (): number => (performance.now() - startedAt) / 1000;
        const result = await runCell(cell, installation, (event) => {
          const doing = progressOf(event);
          if (event.event === "warning") screen.line(`${style.yellow("!")} ${label}: ${event.message}`);
          if (doing === undefined) return;
          const stepsLeft = event.event === "step" ? event.seconds_left : undefined;
          const left = timeLeft({
            finished: took,
            elapsed: elapsed(),
            left: stepsLeft,
            runsAfter: pending.length - index - 1,
          });
          screen.live(style.dim(`${label}: ${doing}${left === undefined ? "" : `, all in ${duration(left)}`}`));
        });
        took.push(result.summary.wall_s);
        results.set(cell.folder, result);
        await show(results);
        screen.line(`${style.green("✓")} ${label}: ${outcomeText(result, firstToolName)}, ${duration(elapsed())}`);
      }
    }
    screen.line();
    screen.line(await show(results));
    screen.line();
    screen.line(`mean ± standard deviation over seeds; ${join(state.root, "results.json")}, curves.svg, curves.png`);
  };

  try {
    await Promise.race([work(), supervisor.failed, stop.requested]);
  } finally {
    screen.clear();
    if (stop.wasRequested()) {
      screen.line("stopping; Ctrl-C again kills; the same command goes on where this one has stopped");
    }
    await supervisor.stop();
    await release();
  }
}

function progressOf(event: RunEvent): string | undefined {
  switch (event.event) {
    case "evaluating":
      return `evaluation ${event.phase} training ${event.done}/${event.total}`;
    case "progress":
      return `step ${event.step}, ${event.doing} ${event.done}/${event.total}`;
    case "step": {
      const { reward_mean: reward } = event.metrics;
      return `step ${event.step}/${event.steps}${reward === undefined ? "" : `, reward ${reward.toFixed(3)}`}`;
    }
    default:
      return undefined;
  }
}

function outcomeText(result: CellResult, firstToolName: string): string {
  const { reward = Number.NaN, firstTool = Number.NaN } = outcomeOf(result);
  return `reward ${reward.toFixed(3)}, ${firstToolName} ${percent(firstTool)}`;
}
