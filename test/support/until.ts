import { setTimeout as pause } from "node:timers/promises";

/**
 * Waits for something that happens in another process: asks again and again until the answer is not undefined or false.
 * @throws Error naming what was waited for, when it does not come in time
 */
export async function until<T>(
  what: string,
  ask: () => T | undefined | Promise<T | undefined>,
  withinMs = 20_000,
): Promise<Exclude<T, false | undefined>> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined && answer !== false) return answer as Exclude<T, false | undefined>;
    if (performance.now() > deadline) throw new Error(`${what} did not happen within ${withinMs / 1000} s`);
    await pause(25);
  }
}

/** Whether a process lives; a zombie, whose parent has not asked for its end yet, does not. */
export async function lives(pid: number): Promise<boolean> {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  const { readFile } = await import("node:fs/promises");
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
  return !/\) Z /.test(stat);
}
