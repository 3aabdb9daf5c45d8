import { existsSync } from "node:fs";
import { join } from "node:path";
import { FulgurError } from "#shared/errors.ts";
import type { TrainerConfig } from "../trainer/config.ts";
import type { ServePrecision } from "../trainer/inference/config.ts";
import type { StartFlags } from "./commands/start.ts";
import { proveBaseVersion, seedTask, startInstallation, type Installation } from "./installation.ts";
import { LOCAL_TASKS, type LocalTask } from "./local-tasks.ts";
import { PAUSED } from "./parts/trainer.ts";
import { localUrl, portsFrom, requireFreePorts } from "./ports.ts";
import { startReaper } from "./reaper.ts";
import { chooseRun, currentRunSchema, type CurrentRun } from "./run-choice.ts";
import { shardsOf } from "./shards.ts";
import { claimStateDir, makeStateDir, readJson, stateDir, type StateDir } from "./state.ts";
import { stopSignal } from "./stop-signal.ts";
import { createSupervisor } from "./supervisor.ts";
import { createScreen, type Screen } from "./terminal/screen.ts";
import { supervisorLine } from "./terminal/supervisor-line.ts";
import type { Summary } from "./terminal/summary.ts";
import { readSummary, train } from "./train.ts";
import { checkAlgorithm, checkSettings, givenSettings } from "./trainer-flags.ts";

/**
 * Runs the installation until its work is done (`--exit`), a signal asks it to stop, or a part was given up.
 * @throws FulgurError what went wrong, once everything has been stopped
 */
export async function start(flags: StartFlags): Promise<void> {
  const task = LOCAL_TASKS[flags.task];
  if (task === undefined) throw new FulgurError("ERR_CONFIG", `there is no task ${flags.task}`);
  const settings = givenSettings(flags);
  await checkAlgorithm(settings);
  const state = stateDir(flags.stateDir);
  const ports = portsFrom(flags.portBase, flags.shards ?? (await shardsOf(state)));
  // A start that is refused leaves nothing behind; where there is a folder, who holds it is told first.
  if (!existsSync(state.root)) await requireFreePorts(ports);
  await makeStateDir(state);
  const release = await claimStateDir(state, localUrl(ports.edge));

  const screen = createScreen({ out: process.stdout, env: process.env });
  const stop = stopSignal();
  const supervisor = createSupervisor({
    reaper: startReaper(),
    onEvent: (event) => screen.line(supervisorLine(event, screen.style)),
  });
  stop.onSecond(() => {
    supervisor.kill();
    process.exit(130);
  });

  const work = async (): Promise<void> => {
    const current = await readCurrentRun(state);
    const choice = flags.train
      ? chooseRun({ task: flags.task, settings, isNew: flags.new }, current?.run, current?.summary !== undefined)
      : undefined;
    await requireFreePorts(ports);
    const config = checkSettings(choice === undefined || choice.type === "new" ? settings : choice.run.settings);
    const installation = await startInstallation({
      state,
      ports,
      task,
      supervisor,
      inferenceUrl: flags.inference,
      precision: ownPrecision(config, flags),
      onListening: (name, url, ms) =>
        screen.line(`${screen.style.green("✓")} ${name.padEnd(10)} ${url}  ${seconds(ms, screen)}`),
    });
    await seed({ task, installation, screen, valTasks: config.evalTasks });
    screen.line(`  ${"page".padEnd(10)} ${screen.style.bold(`${installation.urls.edge}/`)}`);
    screen.line();
    if (choice !== undefined) {
      const outcome = await train({
        choice,
        taskName: flags.task,
        task,
        settings,
        state,
        installation,
        supervisor,
        screen,
      });
      if (flags.exit && outcome === "paused") process.exitCode = PAUSED;
    }
    if (flags.exit) return;
    screen.line(
      `serving: ${installation.urls.edge}/ (page), ${installation.urls.edge}/v1 (for any LLM SDK; a key comes from ` +
        `npx fulgur token --agent ${task.agent} --mode live); Ctrl-C stops all`,
    );
    await supervisor.failed;
  };

  try {
    await Promise.race([work(), supervisor.failed, stop.requested]);
  } finally {
    screen.clear();
    if (stop.wasRequested()) screen.line("stopping; Ctrl-C again kills");
    await supervisor.stop();
    await release();
  }
}

/**
 * What the installation's own endpoint multiplies in.
 * @throws FulgurError ERR_CONFIG where it does not have what was asked for
 */
function ownPrecision({ servePrecision }: TrainerConfig, { inference }: StartFlags): ServePrecision {
  if (servePrecision !== "bf16") return servePrecision;
  if (inference !== undefined) return "fp32";
  throw new FulgurError(
    "ERR_CONFIG",
    "--serve-precision bf16: the built-in endpoint has fp32 and int8; name servers that have bf16 with --inference",
  );
}

async function seed(options: {
  readonly task: LocalTask;
  readonly installation: Installation;
  readonly screen: Screen;
  readonly valTasks: number;
}): Promise<void> {
  const { task, installation, screen, valTasks } = options;
  const startedAt = performance.now();
  const { client, base } = installation;
  const { train: trainTasks, val } = await seedTask(client, { task, base, valTasks });
  await proveBaseVersion(installation, `${task.policy}@0`, base.artifact);
  screen.line(
    `${screen.style.green("✓")} ${"tasks".padEnd(10)} ${trainTasks} to train on, ${val} held out; ` +
      `${task.policy}@0 answers  ${seconds(performance.now() - startedAt, screen)}`,
  );
}

async function readCurrentRun(state: StateDir): Promise<{ run: CurrentRun; summary: Summary | undefined } | undefined> {
  const run = await readJson(join(state.runs, "current.json"), currentRunSchema);
  return run === undefined ? undefined : { run, summary: await readSummary(join(state.runs, run.run_id)) };
}

function seconds(ms: number, { style }: Screen): string {
  return style.dim(`${(ms / 1000).toFixed(1)} s`);
}
