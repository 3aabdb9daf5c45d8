import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, describe, expect, it } from "vitest";

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "fulgur-make-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

function make(name: string, ...flags: string[]): ChildProcess {
  const places = ["--state", join(dir, `${name}-state`), "--out", join(dir, name)];
  return spawn(process.execPath, ["models/make.ts", "--tasks", "4", ...places, ...flags]);
}

async function codeOf(child: ChildProcess): Promise<number | null> {
  const [code] = (await once(child, "close")) as [number | null];
  return code;
}

describe("making the model", () => {
  it("gives the same weights whether or not it was stopped by Ctrl-C on the way, and a card", async () => {
    const budget = ["--tokens", "30000"];
    expect(await codeOf(make("whole", ...budget))).toBe(0);

    const stopped = make("parts", ...budget);
    if (stopped.stdout === null) throw new Error("no stdout");
    // The first progress line comes after the first step.
    await once(stopped.stdout, "data");
    stopped.kill("SIGINT");
    expect(await codeOf(stopped)).toBe(130);
    expect(await codeOf(make("parts", ...budget))).toBe(0);

    const weights = (name: string): Promise<Buffer> => readFile(join(dir, name, "model.safetensors"));
    expect((await weights("parts")).equals(await weights("whole"))).toBe(true);
    const card = await readFile(join(dir, "parts", "README.md"), "utf8");
    expect(card).toContain("| memory first |");
    const { step } = JSON.parse(await readFile(join(dir, "parts-state", "progress.json"), "utf8")) as { step: number };
    expect(card).toContain(`${step} steps`);
  }, 120_000);

  it("says in a sentence what is wrong with a flag", async () => {
    const child = make("wrong", "--threads", "none");
    if (child.stderr === null) throw new Error("no stderr");
    const [said, code] = await Promise.all([text(child.stderr), codeOf(child)]);
    expect(code).toBe(1);
    expect(said).toContain("threads");
    expect(said).toContain("models/make.ts");
  });
});
