import { spawn } from "node:child_process";
import { join } from "node:path";
import type { RunEvent } from "#shared/run-events.ts";
import { parseEvent } from "../../cli/parts/trainer.ts";
import { ROOT } from "../../cli/root.ts";

/** How a trainer's process ended. */
export interface TrainerEnd {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly events: readonly RunEvent[];
  /** Its logs. */
  readonly stderr: string;
}

/** Runs the trainer to its end. @param env added to this process's own */
export function runTrainer(args: readonly string[], env: Readonly<Record<string, string>>): Promise<TrainerEnd> {
  const child = spawn(process.execPath, [join(ROOT, "trainer/main.ts"), ...args], {
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const texts = { stdout: "", stderr: "" };
  child.stdout.on("data", (chunk: Buffer) => (texts.stdout += chunk.toString()));
  child.stderr.on("data", (chunk: Buffer) => (texts.stderr += chunk.toString()));
  return new Promise((resolve) => {
    child.once("close", (code, signal) => {
      const events = texts.stdout.split("\n").flatMap((line) => parseEvent(line) ?? []);
      resolve({ code, signal, events, stderr: texts.stderr });
    });
  });
}
