import { spawnSync } from "node:child_process";
import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { claimStateDir, makeStateDir, readRunning, stateDir, type StateDir } from "../../cli/state.ts";

let state: StateDir;

beforeEach(async () => {
  state = stateDir(join(await mkdtemp(join(tmpdir(), "fulgur-state-")), "state"));
  await makeStateDir(state);
});
afterEach(() => rm(join(state.root, ".."), { recursive: true }));

const mark = (pid: number): Promise<void> =>
  writeFile(
    join(state.root, "running.json"),
    JSON.stringify({ pid, edge_url: "http://127.0.0.1:1234", started_at: 1 }),
  );

test("the folder is its user's alone", async () => {
  expect(((await stat(state.root)).mode & 0o777).toString(8)).toBe("700");
});

test("a folder in use by a living process is refused, with its number and the way round", async () => {
  await mark(process.ppid);
  await expect(claimStateDir(state, "http://127.0.0.1:8787")).rejects.toMatchObject({
    code: "ERR_CONFLICT",
    message: expect.stringMatching(new RegExp(`in use by process ${process.ppid} .*--state-dir and --port-base`)),
  });
});

test("the mark of a process that has ended is taken over, and removed at the end", async () => {
  const { pid } = spawnSync(process.execPath, ["-e", ""]);
  await mark(pid);
  expect(await readRunning(state)).toBeUndefined();
  const release = await claimStateDir(state, "http://127.0.0.1:8787");
  expect(await readRunning(state)).toMatchObject({ pid: process.pid, edge_url: "http://127.0.0.1:8787" });
  await release();
  expect(await readRunning(state)).toBeUndefined();
});

test("a torn mark counts for nothing", async () => {
  await writeFile(join(state.root, "running.json"), '{"pid": 1');
  expect(await readRunning(state)).toBeUndefined();
});

test("a folder that cannot be made is one sentence", async () => {
  await writeFile(join(state.root, "file"), "");
  await expect(makeStateDir(stateDir(join(state.root, "file", "state")))).rejects.toMatchObject({ code: "ERR_DISK" });
});
