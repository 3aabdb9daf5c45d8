/** The servers that are compared, as child processes. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import type { ServePrecision } from "../../trainer/inference/config.ts";

/** A running server. */
export interface BenchServer {
  readonly url: string;
  close(): Promise<void>;
}

/** The command that installs vLLM, for a note when it is missing. */
export const INSTALL_VLLM = "sh bench/python/setup-vllm.sh";

/** The vllm command: of the environment variable VLLM, else where the setup script puts it; null when there is none. */
export function findVllm(): string | null {
  const path = process.env["VLLM"] ?? ".fulgur/vllm/bin/vllm";
  return existsSync(path) ? path : null;
}

/** Starts the built-in endpoint. */
export async function startOurs(
  modelDir: string,
  adapterDir: string,
  precision: ServePrecision = "fp32",
): Promise<BenchServer> {
  const port = await freePort();
  const main = fileURLToPath(new URL("../../trainer/inference/main.ts", import.meta.url));
  return start(
    process.execPath,
    [main, "--model", modelDir, "--adapter-dir", adapterDir, "--port", `${port}`, "--precision", precision],
    port,
    {},
  );
}

/** Starts vLLM as an operator of an RL loop would: float32, adapters on, loaded while it runs. */
export async function startVllm(vllm: string, modelDir: string): Promise<BenchServer> {
  const port = await freePort();
  const options = ["--enable-lora", "--max-lora-rank", "16", "--max-model-len", "2048"];
  const precision = ["--dtype", "float32", "--enforce-eager"];
  const listen = ["--host", "127.0.0.1", "--port", `${port}`, "--served-model-name", "base"];
  return start(vllm, ["serve", modelDir, ...options, ...precision, ...listen], port, {
    VLLM_ALLOW_RUNTIME_LORA_UPDATING: "True",
    VLLM_CPU_KVCACHE_SPACE: "1",
    HF_HUB_OFFLINE: "1",
    VLLM_NO_USAGE_STATS: "1",
  });
}

async function start(
  command: string,
  args: readonly string[],
  port: number,
  env: Readonly<Record<string, string>>,
): Promise<BenchServer> {
  // A group of its own: vLLM starts further processes, which end with it.
  const child = spawn(command, args, {
    env: { ...process.env, ...env },
    detached: true,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const abandon = (): void => {
    signal(child, "SIGKILL");
  };
  process.once("exit", abandon);
  const said: Buffer[] = [];
  child.stdout.on("data", (part: Buffer) => said.push(part));
  child.stderr.on("data", (part: Buffer) => said.push(part));
  const exited = new Promise<void>((resolve) => {
    child.once("exit", () => {
      resolve();
    });
  });
  const url = `http://127.0.0.1:${port}`;
  const close = async (): Promise<void> => {
    signal(child, "SIGTERM");
    const timer = setTimeout(() => {
      signal(child, "SIGKILL");
    }, 10_000);
    await exited;
    clearTimeout(timer);
    process.off("exit", abandon);
  };
  const deadlineMs = Date.now() + 240_000;
  for (;;) {
    const isUp = await fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isUp) return { url, close };
    if (child.exitCode !== null || Date.now() > deadlineMs) {
      await close();
      throw new Error(`${command} did not start:\n${Buffer.concat(said).toString("utf8").slice(-2000)}`);
    }
    await new Promise((resolve) => {
      setTimeout(resolve, 200);
    });
  }
}

function signal(child: ChildProcess, name: NodeJS.Signals): void {
  if (child.pid === undefined || child.exitCode !== null) return;
  try {
    process.kill(-child.pid, name);
  } catch {
    // It ended in between.
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      const port = typeof address === "object" && address !== null ? address.port : 0;
      server.close(() => {
        resolve(port);
      });
    });
  });
}
