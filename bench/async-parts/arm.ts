import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Installation } from "../../cli/installation.ts";
import { parseEvent } from "../../cli/parts/trainer.ts";
import { ROOT } from "../../cli/root.ts";
import type { StateDir } from "../../cli/state.ts";
import { descendantsOf } from "../../test/support/processes.ts";
import { cpuSeconds } from "../ingest-parts/process-figures.ts";

/** One run of the trainer from the base, a number of its steps measured, and stopped. */
export interface ArmOptions {
  readonly run: string;
  readonly agent: string;
  /** K. */
  readonly maxStaleness: number;
  /** Steps that are measured, after those in which the line fills and compilers warm up. */
  readonly steps: number;
  readonly leadIn: number;
  readonly flags?: readonly string[];
}

/** Means over the measured steps. */
export interface ArmFigures {
  readonly rolloutsPerSecond: number;
  /** From one step's end to the next. */
  readonly stepSeconds: number;
  readonly waitSeconds: number;
  readonly trainSeconds: number;
  readonly checkpointSeconds: number;
  readonly publishSeconds: number;
  /** Versions between the one that sampled a rollout and the one that it trains. */
  readonly staleness: number;
  /** Cores that a process kept busy, by its name. */
  readonly cores: Readonly<Record<string, number>>;
}

/** A process is known by its command. */
const PROCESSES = {
  inference: "inference/main",
  trainer: "trainer/main",
  workerd: "workerd serve",
  sqld: "sqld ",
} as const;

/** @throws Error when the trainer ends by itself */
export async function runArm(
  { state, installation: { urls, keys } }: { readonly state: StateDir; readonly installation: Installation },
  { run, agent, maxStaleness, steps, leadIn, flags = [] }: ArmOptions,
): Promise<ArmFigures> {
  const child = spawn(
    process.execPath,
    [
      ...[join(ROOT, "trainer/main.ts"), "--run", run, "--agent", agent, "--policy", "flight"],
      ...["--state-dir", state.root, "--edge-url", urls.edge],
      ...["--inference-url", urls.inference, "--store-url", urls.store],
      ...["--max-staleness", String(maxStaleness), "--eval-tasks", "0"],
      // More than will be taken: near a run's end fewer rollouts are started.
      ...["--steps", "1000"],
      // So little is learnt that both arms have the same rollouts to make.
      ...["--learning-rate", "1e-6"],
      // What was started ahead is dropped, so that it does not run beside the next arm.
      ...["--drain-seconds", "1"],
      ...flags,
    ],
    { env: { ...process.env, FULGUR_STORE_TOKEN: keys.store.readToken }, stdio: ["ignore", "pipe", "pipe"] },
  );
  let complaints = "";
  child.stderr.on("data", (chunk: Buffer) => (complaints += chunk.toString()));
  const closed = once(child, "close");
  const measured: Readonly<Record<string, number>>[] = [];
  let from = { at: 0, cpu: cpuByProcess() };
  let to = from;
  for await (const line of createInterface({ input: child.stdout })) {
    const event = parseEvent(line);
    if (event?.event !== "step") continue;
    if (event.step === leadIn) from = { at: performance.now(), cpu: cpuByProcess() };
    if (event.step <= leadIn) continue;
    measured.push(event.metrics);
    if (measured.length < steps) continue;
    to = { at: performance.now(), cpu: cpuByProcess() };
    break;
  }
  if (child.exitCode !== null) throw new Error(`the trainer ended with ${child.exitCode}:\n${complaints}`);
  child.kill("SIGTERM");
  await closed;
  const seconds = (to.at - from.at) / 1000;
  const total = (name: string): number => measured.reduce((sum, metrics) => sum + (metrics[name] ?? 0), 0);
  const mean = (name: string): number => total(name) / measured.length;
  return {
    // Groups without a spread are rollouts too.
    rolloutsPerSecond: total("rollouts_claimed") / seconds,
    stepSeconds: seconds / measured.length,
    waitSeconds: mean("seconds_wait"),
    trainSeconds: mean("seconds_train"),
    checkpointSeconds: mean("seconds_checkpoint"),
    publishSeconds: mean("seconds_publish"),
    staleness: mean("staleness_mean"),
    cores: Object.fromEntries(
      Object.entries(to.cpu).map(([name, cpu]) => [name, (cpu - (from.cpu[name] ?? 0)) / seconds]),
    ),
  };
}

/** The agent with slow tools is a part of this process. */
function cpuByProcess(): Record<string, number> {
  const running = descendantsOf(process.pid);
  const pids = Object.entries(PROCESSES).map(([name, command]): [string, number] => [
    name,
    running.find((each) => each.command.includes(command))?.pid ?? 0,
  ]);
  return Object.fromEntries([...pids, ["agent", process.pid] as const].map(([name, pid]) => [name, cpuSeconds(pid)]));
}
