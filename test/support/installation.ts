import { spawn, type ChildProcess } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EdgeClient } from "#shared/client.ts";
import { ownClient } from "../../cli/edge-access.ts";
import { ensureKeys, type Keys } from "../../cli/keys.ts";
import { ROOT } from "../../cli/root.ts";
import { descendantsOf, type Process } from "./processes.ts";
import { lives, until } from "./until.ts";

/** A `fulgur start` of its own folder and ports, as a user's terminal would run it, for whole-system tests. */
export interface Started {
  readonly child: ChildProcess;
  readonly edgeUrl: string;
  readonly storeUrl: string;
  /** All that it has printed so far. */
  output(): string;
  /** Waits for a line that matches; looks at what was printed before the call too. */
  line(pattern: RegExp, withinMs?: number): Promise<string>;
  /** How it ended. */
  readonly exit: Promise<number | null>;
  /** Everything that it has started and that still runs. */
  readonly processes: () => Process[];
}

export interface Folder {
  readonly path: string;
  readonly portBase: number;
  start(args: readonly string[]): Started;
  /** Another command of `fulgur` on the folder and its ports. */
  command(args: readonly string[]): Started;
  keys(): Promise<Keys>;
  /** With admin scope. */
  client(): Promise<EdgeClient>;
  readJson(path: string): Promise<unknown>;
  /** Ends what still runs, and removes the folder. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A state folder and three free ports. */
export async function newFolder(): Promise<Folder> {
  const path = await mkdtemp(join(tmpdir(), "fulgur-system-"));
  const portBase = await freePortBase();
  const running: Started[] = [];
  const folder: Folder = {
    path,
    portBase,
    start: (args) => folder.command(["start", ...args]),
    command([name = "", ...args]) {
      const started = startCli([name, "--state-dir", path, "--port-base", String(portBase), ...args], portBase);
      running.push(started);
      return started;
    },
    keys: () => ensureKeys(join(path, "keys")),
    client: async () => ownClient(`http://127.0.0.1:${portBase}`, (await folder.keys()).edge, "admin"),
    readJson: async (name) => JSON.parse(await readFile(join(path, name), "utf8")),
    async [Symbol.asyncDispose]() {
      for (const { child, exit, processes } of running) {
        if (child.exitCode !== null || child.signalCode !== null) continue;
        const left = processes();
        child.kill("SIGTERM");
        await exit;
        await allEnded(left);
      }
      await rm(path, { recursive: true, force: true, maxRetries: 5 });
    },
  };
  return folder;
}

/** Runs another command of `fulgur` to its end. */
export async function runCli(
  args: readonly string[],
): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const child = spawn(process.execPath, [join(ROOT, "cli/main.ts"), ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const texts = { stdout: "", stderr: "" };
  child.stdout.on("data", (chunk: Buffer) => (texts.stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (texts.stderr += chunk.toString()));
  const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
  return { code, ...texts };
}

/** Waits until none of the processes lives any more. */
export async function allEnded(processes: readonly Process[], withinMs = 15_000): Promise<void> {
  await until(
    `the end of ${processes.map(({ command }) => command.slice(0, 60)).join("; ")}`,
    async () => !(await Promise.all(processes.map(({ pid }) => lives(pid)))).includes(true),
    withinMs,
  );
}

function startCli(args: readonly string[], portBase: number): Started {
  const child = spawn(process.execPath, [join(ROOT, "cli/main.ts"), ...args], { stdio: ["ignore", "pipe", "pipe"] });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk: Buffer) => (text += chunk.toString()));
  const exit = new Promise<number | null>((resolve) => child.once("close", resolve));
  let over = false;
  void exit.then(() => (over = true));
  return {
    child,
    edgeUrl: `http://127.0.0.1:${portBase}`,
    storeUrl: `http://127.0.0.1:${portBase + 2}`,
    output: () => text,
    exit,
    processes: () => descendantsOf(child.pid ?? -1),
    line: (pattern, withinMs = 60_000) =>
      until(
        `the line ${pattern}`,
        () => {
          const found = text.split("\n").find((line) => pattern.test(line));
          if (found === undefined && over)
            throw new Error(`it ended without the line ${pattern}; it printed:\n${text}`);
          return found;
        },
        withinMs,
      ),
  };
}

/** Three neighbouring ports that are free now. */
export async function freePortBase(): Promise<number> {
  for (;;) {
    const base = 20_000 + Math.floor(Math.random() * 10_000);
    const free = await Promise.all([base, base + 1, base + 2].map(isFree));
    if (!free.includes(false)) return base;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen({ host: "127.0.0.1", port }, () => server.close(() => resolve(true)));
  });
}
