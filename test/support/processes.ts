import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, readdirSync } from "node:fs";

export interface Process {
  readonly pid: number;
  readonly parent: number;
  readonly command: string;
}

/** All descendants of a process, from /proc where there is one and from `ps` elsewhere. */
export function descendantsOf(pid: number): Process[] {
  const all = existsSync("/proc/self/stat") ? fromProc() : fromPs();
  const found: Process[] = [];
  const parents = new Set([pid]);
  // Parents come before their children often, not always: go on until nothing is added.
  for (let before = -1; before !== parents.size;) {
    before = parents.size;
    for (const process of all) {
      if (!parents.has(process.parent) || parents.has(process.pid)) continue;
      parents.add(process.pid);
      found.push(process);
    }
  }
  return found;
}

function fromProc(): Process[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const stat = readFileSync(`/proc/${name}/stat`, "utf8");
        // The name in brackets may hold anything; the parent is the second field behind it.
        const parent = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
        const command = readFileSync(`/proc/${name}/cmdline`, "utf8").replaceAll("\0", " ").trim();
        return [{ pid: Number(name), parent, command }];
      } catch {
        return []; // it has just ended
      }
    });
}

function fromPs(): Process[] {
  return execFileSync("ps", ["-axo", "pid=,ppid=,args="], { encoding: "utf8" })
    .split("\n")
    .flatMap((line) => {
      const match = /^\s*(\d+)\s+(\d+)\s+(.*)$/.exec(line);
      return match === null ? [] : [{ pid: Number(match[1]), parent: Number(match[2]), command: match[3] ?? "" }];
    });
}
