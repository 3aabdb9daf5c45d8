import { spawn, type ChildProcess } from "node:child_process";
import { join } from "node:path";
import { ROOT } from "../../cli/root.ts";
import { until } from "./until.ts";

/** An inference server as a process of its own, which can be killed and started again at the same address. */
export interface ServerProcess {
  readonly url: string;
  /** SIGKILL, with all that it has started. */
  kill(): Promise<void>;
  /** Starts it again as it was at first: what it had loaded is gone. */
  restart(): Promise<void>;
  stop(): Promise<void>;
}

export interface ServerCommand {
  readonly command: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly port: number;
  readonly readyWithinMs: number;
}

/** The built-in endpoint, without a folder in which it would find versions by itself. */
export function builtInServer(modelDir: string, port: number): Promise<ServerProcess> {
  return startServer({
    command: process.execPath,
    args: [join(ROOT, "trainer/inference/main.ts"), "--model", modelDir, "--port", String(port), "--threads", "1"],
    port,
    readyWithinMs: 30_000,
  });
}

/** vLLM as an operator of an RL loop runs it. */
export function vllmServer(vllm: string, modelDir: string, port: number): Promise<ServerProcess> {
  return startServer({
    command: vllm,
    args: [
      ...["serve", modelDir, "--host", "127.0.0.1", "--port", String(port), "--served-model-name", "base"],
      ...["--enable-lora", "--max-lora-rank", "16", "--max-loras", "4", "--dtype", "float32", "--enforce-eager"],
    ],
    env: {
      VLLM_ALLOW_RUNTIME_LORA_UPDATING: "True",
      VLLM_CPU_KVCACHE_SPACE: "1",
      HF_HUB_OFFLINE: "1",
      VLLM_NO_USAGE_STATS: "1",
    },
    port,
    readyWithinMs: 240_000,
  });
}

async function startServer(options: ServerCommand): Promise<ServerProcess> {
  const { command, args, env, port, readyWithinMs } = options;
  const url = `http://127.0.0.1:${port}`;
  let child: ChildProcess;
  let ended: Promise<unknown>;

  async function start(): Promise<void> {
    // A group of its own: vLLM starts further processes.
    child = spawn(command, args, {
      cwd: ROOT,
      env: { ...process.env, ...env },
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    const said: Buffer[] = [];
    for (const stream of [child.stdout, child.stderr]) stream?.on("data", (part: Buffer) => said.push(part));
    ended = new Promise((resolve) => child.once("close", resolve));
    await until(
      `${command} answers at ${url}`,
      () => {
        if (child.exitCode !== null) throw new Error(`it ended: ${Buffer.concat(said).toString("utf8").slice(-3000)}`);
        return fetch(`${url}/health`).then(
          ({ ok }) => ok,
          () => false,
        );
      },
      readyWithinMs,
    );
  }

  async function end(signal: NodeJS.Signals): Promise<void> {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    process.kill(-child.pid, signal);
    await ended;
  }

  await start();
  return { url, kill: () => end("SIGKILL"), restart: start, stop: () => end("SIGKILL") };
}
