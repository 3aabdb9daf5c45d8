import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { armFault, withFaultPoints } from "../../trainer/fault-point.ts";

/** A part with one function that tells what became of it, in a process of its own, which is to die. */
const PROGRAM = `
import { armFault, faultPoint, followSteps, withFaultPoints } from ${JSON.stringify(join(import.meta.dirname, "../../trainer/fault-point.ts"))};
armFault(process.env.AT);
const say = (text) => process.stdout.write(text + " ");
const part = withFaultPoints("part", {
  work: async (ms) => {
    say("begun");
    await new Promise((resolve) => setTimeout(resolve, ms));
    say("done");
  },
});
for (const step of [1, 2, 3]) {
  await part.work(20);
  await part.work(5000 * (step === 2));
  say("answered");
  faultPoint("between");
  followSteps({ event: "step", step });
}
`;

function run(at: string): { signal: string | null; said: string } {
  const { signal, stdout } = spawnSync(process.execPath, ["--input-type=module-typescript", "-e", PROGRAM], {
    env: { ...process.env, AT: at },
    encoding: "utf8",
  });
  return { signal, said: stdout.trim() };
}

describe("a fault point", () => {
  const first = "begun done begun done answered";
  it.each([
    ["before part.work in step 2", first],
    ["during part.work in step 2", `${first} begun`],
    ["after part.work in step 2", `${first} begun done`],
    // Half as long into it as the time before, which is long before its five seconds are over.
    ["during part.work in step 2, pass 2", `${first} begun done begun`],
    ["after between in step 1", first],
  ])("kills the process %s", (at, said) => {
    expect(run(at)).toEqual({ signal: "SIGKILL", said });
  });

  it("is nothing where none was asked for: parts are what they were", () => {
    armFault(undefined);
    const part = { work: () => 1 };
    expect(withFaultPoints("part", part)).toBe(part);
  });

  it("is refused where it is not written as one", () => {
    for (const text of [
      "engine.step",
      "at engine.step in step 2",
      "after engine.step in step 0",
      "after engine.step",
    ]) {
      expect(() => armFault(text)).toThrow(/"before\|during\|after PLACE in step N" was wanted/);
    }
    armFault("");
  });
});
