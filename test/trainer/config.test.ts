import { describe, expect, it } from "vitest";
import { PRESETS } from "../../trainer/algorithm.ts";
import {
  algorithmOf,
  engineOptions,
  helpText,
  learningRateAt,
  parseFlags,
  runPaths,
  stalenessBound,
  trainedRoles,
} from "../../trainer/config.ts";

describe("parseFlags", () => {
  it("takes the fields' names as flags, with defaults for the rest", () => {
    const config = parseFlags(["--run", "7", "--group-size", "4", "--learning-rate=3e-4", "--sync", "--seed", "3"]);
    expect(config).toMatchObject({
      run: "7",
      groupSize: 4,
      learningRate: 3e-4,
      sync: true,
      seed: 3,
      groups: 16,
      steps: 24,
    });
    expect(stalenessBound(config)).toBe(0);
    expect(stalenessBound(parseFlags(["--run", "7", "--sync", "false"]))).toBe(1);
    expect(parseFlags(["--pause-on-alarm", "--metrics-port", "0", "--peak-tflops", "1.5", "--run", "7"])).toMatchObject(
      {
        pauseOnAlarm: true,
        metricsPort: 0,
        peakTflops: 1.5,
      },
    );
    expect(parseFlags(["--run", "7"])).toMatchObject({ pauseOnAlarm: false });
  });

  it.each([
    [["--run", "1", "--grops", "3"], "there is no flag --grops"],
    [["--run"], "--run wants a value"],
    [["--steps", "3"], "--run: "],
    [["--run", "1", "--groups", "0"], "--groups: Too small: expected number to be >=1, 0 came"],
    [["--run", "1", "--groups", "many"], '--groups: Invalid input: expected number, received string, "many" came'],
    [["--run", "1", "--method", "half"], '"half" came'],
    [["--run", "1", "--roles", "main,,judge"], "--roles: wanted roles with commas between"],
    [["--run", "1", "--edge-url", "nowhere"], '"nowhere" came'],
  ])("refuses %j in one sentence", (argv, sentence) => {
    expect(() => parseFlags(argv)).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(sentence) }),
    );
  });

  it("takes roles with commas between, and trains all where there are none", () => {
    expect(trainedRoles(parseFlags(["--run", "1", "--roles", "main,rewriter"]))).toEqual(["main", "rewriter"]);
    expect(trainedRoles(parseFlags(["--run", "1"]))).toBeUndefined();
  });

  it("documents every flag", () => {
    const lines = helpText()
      .split("\n")
      .filter((line) => line.startsWith("  --"));
    expect(lines.length).toBeGreaterThan(30);
    for (const line of lines) expect(line).toMatch(/^ {2}--[a-z-]+ +\S/);
  });
});

describe("a configuration", () => {
  it("is its preset with what was given in its place", () => {
    const { notes: _, ...choices } = PRESETS.lightning;
    expect(algorithmOf(parseFlags(["--run", "1"]))).toEqual(choices);
    const { credit, loss, advantage } = algorithmOf(
      parseFlags([
        "--run",
        "1",
        "--algorithm",
        "grpo",
        "--credit",
        "air",
        "--kl-coefficient",
        "0",
        "--entropy-bonus",
        "0.01",
      ]),
    );
    expect(credit).toEqual({ type: "air", gamma: 1, terminalWeight: 1 });
    expect(advantage.type).toBe("group-mean-std");
    expect(loss).toMatchObject({ clipHigh: 0.2, klCoefficient: 0, entropyBonus: 0.01, aggregation: "rollout-mean" });
  });

  it("has defaults of its own for live traffic, each of which gives way to what is given", () => {
    expect(parseFlags(["--run", "1", "--live"])).toMatchObject({
      ...{ live: true, from: "routed", groupSize: 1, lone: "ema", steps: 1000, evalTasks: 0 },
    });
    const given = parseFlags(["--run", "1", "--live", "--steps", "7", "--lone", "batch", "--group-size=4"]);
    expect(given).toMatchObject({ live: true, steps: 7, lone: "batch", groupSize: 4 });
    expect(algorithmOf(given).advantage).toEqual({ type: "group-mean", alone: { type: "batch" } });
    expect(parseFlags(["--run", "1", "--live", "false"])).toMatchObject({ live: false, from: "base", steps: 24 });
    expect(algorithmOf(parseFlags(["--run", "1"])).advantage).toEqual({ type: "group-mean" });
  });

  it.each(["grpo", "reinforce++-baseline", "dpo"])(
    "refuses groups of one for %s, which knows its groups alone",
    (name) => {
      expect(() => parseFlags(["--run", "1", "--live", "--algorithm", name])).toThrow(
        `--algorithm ${name} compares the rollouts of a group`,
      );
      expect(parseFlags(["--run", "1", "--live", "--algorithm", name, "--group-size", "4"])).toMatchObject({
        groupSize: 4,
      });
    },
  );

  it("takes groups of one for methods that need no group, and only of live traffic", () => {
    for (const name of ["rloo", "reinforce++", "ppo"]) {
      expect(parseFlags(["--run", "1", "--live", "--algorithm", name])).toMatchObject({ groupSize: 1 });
    }
    expect(() => parseFlags(["--run", "1", "--group-size", "1"])).toThrow("--group-size: wanted 2 or more");
  });

  it("gives the engine its options and the run its folders", () => {
    const config = parseFlags(["--run", "r", "--state-dir", "/state", "--seed", "5", "--threads", "2"]);
    expect(engineOptions(config, { modelDir: "/model" })).toEqual({
      modelDir: "/model",
      method: { type: "lora", rank: 16, alpha: 32, seed: 5 },
      temperature: 1,
      threads: 2,
      valueHead: false,
    });
    expect(runPaths(config)).toEqual({
      run: "/state/runs/r",
      checkpoints: "/state/runs/r/checkpoints",
      summary: "/state/runs/r/summary.json",
      metrics: "/state/runs/r/metrics.jsonl",
      tensorboard: "/state/runs/r/tensorboard",
      versions: "/state/policies/flight",
    });
  });

  it("opens the engine with a critic for the algorithm that has one", () => {
    const config = parseFlags(["--run", "r", "--algorithm", "ppo"]);
    expect(engineOptions(config, { modelDir: "/model" }).valueHead).toBe(true);
  });

  it("lets the learning rate fall to nothing where asked to", () => {
    const config = parseFlags([
      "--run",
      "r",
      "--steps",
      "10",
      "--learning-rate",
      "0.1",
      "--learning-rate-schedule",
      "linear",
    ]);
    expect([0, 5, 9].map((step) => learningRateAt(config, step).toFixed(3))).toEqual(["0.100", "0.050", "0.010"]);
    expect(learningRateAt(parseFlags(["--run", "r", "--learning-rate", "0.1"]), 9)).toBe(0.1);
  });
});
