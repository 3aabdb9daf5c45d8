import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { expect, test } from "vitest";
import { lives, until } from "../support/until.ts";

test("children and their children end when the parent is killed with SIGKILL", async () => {
  const folder = await mkdtemp(join(tmpdir(), "fulgur-reaper-"));
  const parent = spawn(process.execPath, [join(import.meta.dirname, "reaper-parent.ts"), join(folder, "part.log")], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [line]: unknown[] = await once(createInterface({ input: parent.stdout }), "line");
  const pids = String(line).split(",").map(Number);
  expect(pids).toHaveLength(2);
  for (const pid of pids) expect(await lives(pid)).toBe(true);

  parent.kill("SIGKILL");
  await until("the end of both", async () => !(await Promise.all(pids.map(lives))).includes(true), 10_000);
  await rm(folder, { recursive: true });
});
