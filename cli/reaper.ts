import { spawn } from "node:child_process";

/**
 * Children never outlive this process, SIGKILL included. A POSIX shell holds the other end of a pipe: we tell it which
 * process groups live, and when the pipe closes, however we ended, it stops those that are left (politely, then not).
 * It is in a session of its own, so that Ctrl-C does not reach it.
 */
export interface Reaper {
  watch(pid: number): void;
  release(pid: number): void;
  close(): void;
}

// A part leads its own process group where we spawned it so (workerd goes with its host); else it is one process.
const SCRIPT = `
alive=" "
while read -r sign pid; do
  case $sign in
    +) alive="$alive$pid " ;;
    -) rest=" "; for p in $alive; do [ "$p" = "$pid" ] || rest="$rest$p "; done; alive=$rest ;;
  esac
done
[ "$alive" = " " ] && exit 0
for p in $alive; do kill -TERM "-$p" 2>/dev/null || kill -TERM "$p" 2>/dev/null; done
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
  left=
  for p in $alive; do kill -0 "-$p" 2>/dev/null || kill -0 "$p" 2>/dev/null && left=1; done
  [ -z "$left" ] && exit 0
  sleep 0.2
done
for p in $alive; do kill -KILL "-$p" 2>/dev/null || kill -KILL "$p" 2>/dev/null; done
`;

/** Starts the watching shell. */
export function startReaper(): Reaper {
  const shell = spawn("/bin/sh", ["-c", SCRIPT], { stdio: ["pipe", "ignore", "ignore"], detached: true });
  shell.unref();
  // The shell may be gone when we write (someone killed it): nothing to be done about it, and no reason to die.
  shell.stdin.on("error", () => {});
  return {
    watch: (pid) => void shell.stdin.write(`+ ${pid}\n`),
    release: (pid) => void shell.stdin.write(`- ${pid}\n`),
    close: () => void shell.stdin.end(),
  };
}
