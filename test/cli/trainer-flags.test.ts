import { join, resolve } from "node:path";
import { describe, expect, it } from "vitest";
import { ROOT } from "../../cli/root.ts";
import { checkAlgorithm, checkSettings, givenSettings, settingsArgs, trainerOptions } from "../../cli/trainer-flags.ts";

it("has an option for every field of the trainer but those that the installation decides", () => {
  const names = trainerOptions().map(({ long }) => long);
  expect(names).toEqual(expect.arrayContaining(["--algorithm", "--importance", "--overlong", "--seed", "--sync"]));
  expect(names).not.toContain("--run");
  expect(names).not.toContain("--state-dir");
});

describe("givenSettings", () => {
  it("has what was given, by flag name, and gives it back as words", () => {
    const settings = givenSettings({ groupSize: "4", sync: true, task: "flight", credit: undefined });
    expect(settings).toEqual({ "group-size": "4", sync: true });
    expect(checkSettings(settings)).toMatchObject({ groupSize: 4, sync: true });
    expect(settingsArgs(settings).toSorted()).toEqual(["--group-size", "--sync", "4"]);
  });

  it("keeps a module's absolute path, wherever the run is resumed from", () => {
    expect(givenSettings({ algorithm: "grpo,./mine.ts" })).toEqual({ algorithm: `grpo,${resolve("mine.ts")}` });
  });
});

describe("checkAlgorithm", () => {
  it("takes a preset and a module", async () => {
    const module = join(ROOT, "examples/algorithms/median-soft-clip.ts");
    await expect(checkAlgorithm({ algorithm: "grpo", importance: "none" })).resolves.toBeUndefined();
    await expect(checkAlgorithm({ algorithm: module, "kl-coefficient": "0.1" })).resolves.toBeUndefined();
  });

  it.each([
    [{ algorithm: "/no/such.ts" }, "there is no file /no/such.ts"],
    [{ algorithm: "best" }, "--algorithm: wanted lightning, grpo, "],
    [{ loss: "reinforce", "clip-low": "0.1" }, "--clip-low: reinforce has no such setting"],
  ])("refuses %j", async (settings, sentence) => {
    await expect(checkAlgorithm(settings)).rejects.toThrow(sentence);
  });
});
