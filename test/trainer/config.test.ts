import { describe, expect, it } from "vitest";
import { FulgurError } from "#shared/errors.ts";
import { PRESETS } from "../../trainer/algorithm.ts";
import {
  algorithmOf,
  engineOptions,
  flagTexts,
  helpText,
  learningRateAt,
  parseFlags,
  runPaths,
  stalenessBound,
  trainedCalls,
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
    expect(stalenessBound(parseFlags(["--run", "7", "--sync", "false"]))).toBe(4);
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
    [["--steps", "3"], "--run: wanted some text, nothing came"],
    [["--run", "1", "--groups", "0"], "--groups: wanted a whole number from 1 to 1000, 0 came; see --help"],
    [["--run", "1", "--groups", "many"], '--groups: wanted a whole number from 1 to 1000, "many" came'],
    [["--run", "1", "--groups", "1.5"], "--groups: wanted a whole number from 1 to 1000, 1.5 came"],
    [["--run", "1", "--learning-rate", "0"], "--learning-rate: wanted a number above 0 and at most 1, 0 came"],
    [["--run", "1", "--max-grad-norm", "x"], '--max-grad-norm: wanted a number above 0, "x" came'],
    [["--run", "1", "--sync", "perhaps"], '--sync: wanted true or false, or no value, "perhaps" came'],
    [["--run", ""], '--run: wanted some text, "" came'],
    [["--run", "1", "--method", "half"], '--method: wanted one of lora, full, "half" came'],
    [["--run", "1", "--roles", "main,,judge"], "--roles: wanted roles with commas between"],
    [["--run", "1", "--edge-url", "nowhere"], '--edge-url: wanted a URL, "nowhere" came'],
    [["--run", "1", "--edge-url", "7"], "--edge-url: wanted a URL, 7 came"],
  ])("refuses %j in one sentence", (argv, sentence) => {
    expect(() => parseFlags(argv)).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(sentence) }),
    );
  });

  it("takes one inference server or several, and nothing that is none", () => {
    const several = "http://a:1,http://b:2";
    expect(parseFlags(["--run", "1", "--inference-url", several]).inferenceUrl).toBe(several);
    expect(parseFlags(["--run", "1"]).inferenceUrl).toBe("http://127.0.0.1:8788");
    expect(() => parseFlags(["--run", "1", "--inference-url", "http://a:1,nowhere"])).toThrow(
      "--inference-url: wanted a URL, or several different ones with commas between",
    );
  });

  it("takes roles with commas between, and trains all where there are none", () => {
    expect(trainedCalls(parseFlags(["--run", "1", "--roles", "main,rewriter"])).roles).toEqual(["main", "rewriter"]);
    expect(trainedCalls(parseFlags(["--run", "1"])).roles).toBeUndefined();
  });

  it("leaves out calls without log-probabilities, but for the algorithms that do without", () => {
    const needed = ["lightning", "rloo", "sft", "dpo"].map(
      (name) => trainedCalls(parseFlags(["--run", "1", "--algorithm", name])).needsLogprobs,
    );
    expect(needed).toEqual([true, true, false, false]);
  });

  it("says of every flag what it is for, what it takes and what holds without it", () => {
    const texts = flagTexts();
    expect(texts.length).toBeGreaterThan(60);
    for (const { flag, text } of texts) {
      expect(helpText()).toContain(`\n  ${flag.padEnd(26)} ${text}\n`);
      // Of more than one word, and without the run's id there is no run.
      expect(text).toMatch(flag === "--run" ? /^\S+ \S+.*\S$/ : /^\S+ \S+.* \((.+; )?default: .+\)$/s);
    }
    const text = new Map(texts.map((each) => [each.flag, each.text]));
    expect(text.get("--groups")).toBe("tasks in a batch (default: 16)");
    expect(text.get("--final")).toMatch(/earned most \(last \| best; default: last\)$/);
    expect(text.get("--sync")).toMatch(/\(default: off\)$/);
    expect(text.get("--kl-place")).toMatch(/\(loss \| reward; default: the algorithm's\)$/);
    expect(text.get("--lone")).toMatch(/\(ema \| batch; default: nothing, it is dropped; with --live ema\)$/);
  });

  it("says of every wrong value what was wanted and what came, in one sentence", () => {
    let refused = 0;
    for (const { flag } of flagTexts()) {
      for (const value of ["no such thing", "-1e9", ""]) {
        let message = "";
        try {
          parseFlags(["--run", "1", flag, value]);
        } catch (error) {
          if (!(error instanceof FulgurError)) throw error;
          message = error.message;
        }
        if (message === "") continue;
        refused += 1;
        expect(message).toMatch(/^--[a-z-]+: (wanted [^\n]+ came; see --help|[^\n]+ has no such setting; [^\n]+)$/);
        expect(message.startsWith(`${flag}: `)).toBe(true);
      }
    }
    expect(refused).toBeGreaterThan(150);
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

  it("takes samples four versions old of its own algorithm, and one version old of the others", () => {
    expect(stalenessBound(parseFlags(["--run", "1"]))).toBe(4);
    expect(stalenessBound(parseFlags(["--run", "1", "--live"]))).toBe(4);
    expect(stalenessBound(parseFlags(["--run", "1", "--algorithm", "lightning"]))).toBe(4);
    expect(stalenessBound(parseFlags(["--run", "1", "--algorithm", "grpo"]))).toBe(1);
    expect(stalenessBound(parseFlags(["--run", "1", "--algorithm", "./mine.ts"]))).toBe(1);
    expect(stalenessBound(parseFlags(["--run", "1", "--algorithm", "grpo", "--max-staleness", "3"]))).toBe(3);
    expect(stalenessBound(parseFlags(["--run", "1", "--sync"]))).toBe(0);
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
    const other = runPaths(parseFlags(["--run", "r", "--tenant", "acme", "--state-dir", "/state"]));
    expect(other).toMatchObject({ run: "/state/runs/acme~r", versions: "/state/policies/acme~flight" });
  });

  it("takes the torch engine with its own settings, as switches and numbers", () => {
    const flags = ["--engine", "torch", "--devices", "2", "--gradient-checkpointing", "--lora-dropout", "0.1"];
    expect(parseFlags(["--run", "r", ...flags])).toMatchObject({
      engine: "torch",
      devices: 2,
      gradientCheckpointing: true,
      loraDropout: 0.1,
    });
    expect(parseFlags(["--run", "r"])).toMatchObject({ engine: "onnx" });
    const config = parseFlags(["--run", "r", "--microbatch-tokens", "4096"]);
    expect(engineOptions(config, { modelDir: "/model" })).toMatchObject({ maxTokensPerMicrobatch: 4096 });
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
