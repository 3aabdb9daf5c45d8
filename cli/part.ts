import { spawn } from "node:child_process";
import { EventEmitter } from "node:events";
import { closeSync, createWriteStream, openSync, renameSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { createInterface } from "node:readline";
import { FulgurError } from "#shared/errors.ts";

export type PartName = StorePartName | "inference" | "edge" | "trainer";
export type StorePartName = "store" | `store-${number}`;

/** A shard's server, its folder and its log bear this name; the first has the one that it has alone. */
export function storePartName(shard: number): StorePartName {
  return shard === 0 ? "store" : `store-${shard}`;
}

/** One of the processes of an installation, as the supervisor knows it. */
export interface Part {
  readonly name: PartName;
  readonly logPath: string;
  /** Resolves once it answers. */
  start(): Promise<RunningPart>;
  /** Exit codes that it ends with by itself: its purpose, not a crash. */
  readonly finalCodes?: readonly number[];
  readonly probeEveryMs?: number;
}

export interface RunningPart {
  readonly pid: number;
  /** Where it listens; null for one that does not. */
  readonly url: string | null;
  /** How it ended, once it has; never rejects. */
  readonly ended: Promise<PartEnd>;
  /** Asks it to stop and waits; kills its process group when it does not. Repeatable. */
  stop(): Promise<void>;
  /** Rejects when it no longer does its work. */
  readonly probe?: () => Promise<void>;
}

export interface PartEnd {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface SpawnOptions {
  readonly name: PartName;
  readonly command: string;
  readonly args: readonly string[];
  readonly logPath: string;
  readonly env?: Readonly<Record<string, string>>;
  /** A stdout line that says it is ready gives its URL; null where a started process counts as ready. */
  readonly readyUrl: ((line: string) => string | undefined) | null;
  readonly readyWithinMs?: number;
  readonly stopWithinMs?: number;
  /** Every line of its stdout, which the log gets too. */
  readonly onLine?: (line: string) => void;
}

/** Tells of every process from its first moment on: one that is not ready yet must not outlive us either. */
export const processes = new EventEmitter<{ spawned: [pid: number]; ended: [pid: number] }>();

const LOG_BYTES = 16 * 1024 * 1024;

/**
 * Starts a child in a process group of its own (Ctrl-C reaches us alone, and we stop parts in order), its output in a
 * log file, and waits until it says that it is ready.
 * @throws FulgurError ERR_INTERNAL with the end of its log when it ends or says nothing in time
 */
export async function spawnPart(options: SpawnOptions): Promise<RunningPart> {
  const { name, command, args, logPath, env, readyUrl, onLine } = options;
  const { readyWithinMs = 60_000, stopWithinMs = 10_000 } = options;
  rotate(logPath);
  const logHandle = openSync(logPath, "a");
  const log = createWriteStream(logPath, { flags: "a" });
  log.on("error", () => {}); // a full disk must not end the supervisor; the part itself will say so
  const child = spawn(command, args, {
    stdio: ["ignore", "pipe", logHandle],
    detached: true,
    env: { ...process.env, ...env },
  });
  closeSync(logHandle);

  const ended = new Promise<PartEnd>((resolve) => {
    child.once("error", () => resolve({ code: null, signal: null }));
    child.once("exit", (code, signal) => {
      // What it has started must not hold its port when it is started again: workerd outlives a killed host.
      if (child.pid !== undefined) {
        killGroup(child.pid);
        processes.emit("ended", child.pid);
      }
      resolve({ code, signal });
    });
  });
  if (child.pid !== undefined) processes.emit("spawned", child.pid);
  const ready = Promise.withResolvers<string | null>();
  const heard = (line: string): void => {
    log.write(`${line}\n`);
    const url = readyUrl?.(line);
    if (url !== undefined) ready.resolve(url);
    onLine?.(line);
  };
  if (child.stdout !== null) createInterface({ input: child.stdout }).on("line", heard);
  if (readyUrl === null) child.once("spawn", () => ready.resolve(null));
  void ended.then(() => ready.reject(new Error("it ended before it was ready")));
  const tooLate = setTimeout(
    () => ready.reject(new Error(`it did not say that it is ready within ${readyWithinMs / 1000} s`)),
    readyWithinMs,
  );

  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> =>
    (stopping ??= (async () => {
      const { pid } = child;
      if (pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
      child.kill("SIGTERM");
      const patience = setTimeout(() => killGroup(pid), stopWithinMs);
      await ended;
      clearTimeout(patience);
    })());

  try {
    const url = await ready.promise;
    return { pid: child.pid ?? 0, url, ended, stop };
  } catch (cause) {
    await stop();
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new FulgurError("ERR_INTERNAL", `the ${name} did not start: ${why}. ${await lastWords(logPath)}`, { cause });
  } finally {
    clearTimeout(tooLate);
  }
}

/** Kills the process group that a part leads; quiet when it is gone. */
function killGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // gone already
  }
}

/** Kills a running part with all that it started. */
export function killPart(pid: number): void {
  killGroup(pid);
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // gone already
  }
}

/** The end of a log as one readable passage, for an error message. */
export async function lastWords(logPath: string, lines = 5): Promise<string> {
  try {
    const file = await open(logPath);
    try {
      const { size } = await file.stat();
      const tail = Buffer.alloc(Math.min(size, 8192));
      await file.read(tail, 0, tail.length, size - tail.length);
      const said = tail
        .toString("utf8")
        .split("\n")
        .filter((line) => line.trim() !== "" && !/^\s+at |^Node\.js v/.test(line)) // stack frames bury the message
        .slice(-lines)
        .join("\n  ");
      return said === "" ? `Its log ${logPath} is empty` : `The end of ${logPath}:\n  ${said}`;
    } finally {
      await file.close();
    }
  } catch {
    return `It left no log at ${logPath}`;
  }
}

function rotate(logPath: string): void {
  try {
    if (statSync(logPath).size > LOG_BYTES) renameSync(logPath, `${logPath}.1`);
  } catch {
    // no log yet
  }
}
