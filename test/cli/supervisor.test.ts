import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { processes, spawnPart, type Part, type RunningPart } from "../../cli/part.ts";
import { createSupervisor, type Supervisor, type SupervisorEvent } from "../../cli/supervisor.ts";
import { lives, until } from "../support/until.ts";

const quietReaper = { watch: () => {}, release: () => {}, close: () => {} };
const LIVES = "console.log('ready on http://here'); setInterval(() => {}, 1000)";

let folder: string;
let supervisor: Supervisor;
let events: SupervisorEvent[];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "fulgur-supervisor-"));
  events = [];
  supervisor = createSupervisor({
    reaper: quietReaper,
    onEvent: (event) => events.push(event),
    restart: { quickMs: 60_000, firstDelayMs: 1 },
    probeEveryMs: 20,
    probeLimit: 2,
  });
});

afterEach(async () => {
  await supervisor.stop();
  await rm(folder, { recursive: true });
});

/** A part made of a line of JavaScript; `started` holds what ran, in order. */
function part(script: string, extra: Partial<Part> & { probe?: () => Promise<void> } = {}) {
  const { probe, ...rest } = extra;
  const logPath = join(folder, "part.log");
  const started: RunningPart[] = [];
  const made: Part = {
    name: "store",
    logPath,
    async start() {
      const running = await spawnPart({
        name: "store",
        command: process.execPath,
        args: ["-e", script],
        logPath,
        readyUrl: (line) => /ready on (\S+)/.exec(line)?.[1],
        stopWithinMs: 2000,
      });
      started.push(running);
      return probe === undefined ? running : { ...running, probe };
    },
    ...rest,
  };
  return { made, started };
}

test("a part that was killed runs again", async () => {
  const { made, started } = part(LIVES);
  const { first } = await supervisor.run(made);
  expect(first.url).toBe("http://here");
  process.kill(first.pid, "SIGKILL");
  await until("the restart", () => events.some((event) => event.type === "restarted"));
  expect(started).toHaveLength(2);
  expect(events[0]).toEqual({ type: "ended", part: "store", how: "was ended by SIGKILL", retryMs: 1 });
  expect(await lives(started[1]?.pid ?? 0)).toBe(true);
});

test("a part that crashes three times in a row fails the whole, with the end of its log", async () => {
  const { made, started } = part("console.log('ready on http://here'); throw new Error('no such luck')");
  await supervisor.run(made);
  await expect(supervisor.failed).rejects.toThrow(/ended 3 times in a row[^]*no such luck/);
  expect(started).toHaveLength(3);
});

test("a first start that fails is an error at once, with the part's own words", async () => {
  const { made } = part("console.error('port 1 is taken'); process.exit(3)");
  await expect(supervisor.run(made)).rejects.toThrow(/did not start[^]*port 1 is taken/);
});

test("a part that answers no probe is killed and started again", async () => {
  let answers = false;
  const { made, started } = part(LIVES, {
    probe: () => (answers ? Promise.resolve() : Promise.reject(new Error("no write in 5 s"))),
  });
  await supervisor.run(made);
  await until("the restart", () => {
    if (events.some((event) => event.type === "unresponsive")) answers = true;
    return events.some((event) => event.type === "restarted");
  });
  expect(events.map(({ type }) => type)).toEqual(["unresponsive", "ended", "restarted"]);
  expect(await lives(started[0]?.pid ?? 0)).toBe(false);
});

test.each([0, 3])("a part that ends by itself with code %i finishes and is not started again", async (code) => {
  const script = `console.log('ready on http://here'); process.exitCode = ${code}`;
  const { made, started } = part(script, { finalCodes: [0, 3] });
  const { finished } = await supervisor.run(made);
  expect(await finished).toBe(code);
  expect(started).toHaveLength(1);
  expect(events).toEqual([]);
});

test("parts stop in the reverse order of their start, and one that does not listen is killed", async () => {
  const ends: string[] = [];
  const run = async (name: string, script: string): Promise<number> => {
    const { made } = part(script);
    const { first } = await supervisor.run(made);
    void first.ended.then(({ signal, code }) => ends.push(`${name} ${signal ?? code}`));
    return first.pid;
  };
  const polite = "process.on('SIGTERM', () => process.exit(0)); " + LIVES;
  const pids = [
    await run("first", polite),
    await run("second", "process.on('SIGTERM', () => {}); " + LIVES),
    await run("third", polite),
  ];
  await supervisor.stop();
  expect(ends).toEqual(["third 0", "second SIGKILL", "first 0"]);
  for (const pid of pids) expect(await lives(pid)).toBe(false);
});

test("a part that is still starting ends with the others", async () => {
  const { made } = part("setInterval(() => {}, 1000)"); // never says that it is ready
  const pids: number[] = [];
  const remember = (pid: number): void => void pids.push(pid);
  processes.on("spawned", remember);
  const run = supervisor.run(made).catch((error: unknown) => String(error));
  await until("the spawn", () => pids.length > 0);
  await supervisor.stop();
  processes.off("spawned", remember);
  expect(await run).toContain("ended before it was ready");
  expect(await lives(pids[0] ?? 0)).toBe(false);
});
