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

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
