import { readFileSync } from "node:fs";

/** What Linux's /proc says of a process; 0 on other platforms. */

/** A clock tick of /proc is a hundredth of a second on every Linux. */
const TICKS = 100;

/** CPU time so far, user and system, in seconds. */
export function cpuSeconds(pid: number): number {
  const stat = read(`/proc/${pid}/stat`);
  // The name in brackets may hold anything; user and system time are the 12th and 13th fields behind it.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11] ?? 0) + Number(fields[12] ?? 0)) / TICKS;
}

/** Resident memory in MiB. */
export function residentMiB(pid: number): number {
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(read(`/proc/${pid}/status`))?.[1] ?? 0) / 1024;
}

/** Of one process, over the time that it was watched. */
export type Figures = {
  readonly process: string;
  readonly "MiB at start": number;
  readonly "MiB at end": number;
  readonly "MiB a minute": number;
  readonly cores: number;
};

const SAMPLE_MS = 2000;

/**
 * Looks at some processes' memory until it is stopped; of one that has ended, until then. Growth is that of the second half:
 * allocators and caches fill first.
 */
export function watchProcesses(pids: Readonly<Record<string, number>>): { stop(): Figures[] } {
  const startedAt = performance.now();
  const watched = Object.entries(pids).map(([process, pid]) => ({
    process,
    pid,
    cpuBefore: cpuSeconds(pid),
    cpu: cpuSeconds(pid),
    samples: [] as { readonly minute: number; readonly mib: number }[],
  }));
  const look = (): void => {
    const minute = (performance.now() - startedAt) / 60_000;
    for (const each of watched) {
      const mib = residentMiB(each.pid);
      if (mib === 0) continue;
      each.samples.push({ minute, mib });
      each.cpu = cpuSeconds(each.pid);
    }
  };
  look();
  const timer = setInterval(look, SAMPLE_MS);
  return {
    stop() {
      clearInterval(timer);
      look();
      const seconds = (performance.now() - startedAt) / 1000;
      return watched.map(({ process, cpu, cpuBefore, samples }) => ({
        process,
        "MiB at start": samples[0]?.mib ?? 0,
        "MiB at end": samples.at(-1)?.mib ?? 0,
        "MiB a minute": slope(samples.slice(Math.floor(samples.length / 2))),
        cores: (cpu - cpuBefore) / seconds,
      }));
    },
  };
}

/** Of the least-squares line. */
function slope(samples: readonly { readonly minute: number; readonly mib: number }[]): number {
  const mean = (of: (sample: (typeof samples)[number]) => number): number =>
    samples.reduce((sum, sample) => sum + of(sample), 0) / samples.length;
  const [minute, mib] = [mean((sample) => sample.minute), mean((sample) => sample.mib)];
  const over = samples.reduce((sum, sample) => sum + (sample.minute - minute) * (sample.mib - mib), 0);
  const under = samples.reduce((sum, sample) => sum + (sample.minute - minute) ** 2, 0);
  return under === 0 ? 0 : over / under;
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
