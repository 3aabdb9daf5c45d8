import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { algorithmSchema, PRESETS } from "../../trainer/algorithm.ts";
import { parseFlags } from "../../trainer/config.ts";

describe("PRESETS", () => {
  it("has the default's choices in full: results depend on each of them", () => {
    const { notes: _, ...choices } = PRESETS.lightning;
    expect(choices).toEqual({
      credit: { type: "identical" },
      advantage: { type: "group-mean" },
      loss: {
        type: "ppo-clip",
        clipLow: 0.2,
        clipHigh: 0.28,
        importance: { type: "truncated", cap: 2 },
        klCoefficient: 0,
        klEstimator: "k3",
        klPlace: "loss",
        entropyBonus: 0,
        aggregation: "token-mean",
        responseTokens: 1,
      },
    });
  });

  it("has the published constants where papers give them", () => {
    expect(PRESETS.grpo.loss).toMatchObject({ clipLow: 0.2, clipHigh: 0.2, klCoefficient: 0.04, klEstimator: "k3" });
    expect(PRESETS.dapo.loss).toMatchObject({ clipLow: 0.2, clipHigh: 0.28, klCoefficient: 0 });
    expect(PRESETS.dapo.credit.overlong).toEqual({ maxTokens: 20_480, cacheTokens: 4096 });
    expect(PRESETS.gspo.loss).toMatchObject({ clipLow: 3e-4, clipHigh: 4e-4, aggregation: "sequence-mean" });
    expect(PRESETS.cispo.loss).toMatchObject({ clipLow: 1, clipHigh: 4, importance: { type: "ratio" } });
    expect(PRESETS.ppo.loss).toMatchObject({ clipLow: 0.2, clipHigh: 0.2, klEstimator: "k1", klPlace: "reward" });
    expect(PRESETS.ppo.advantage).toMatchObject({ gamma: 1, lambda: 1, value: { coefficient: 0.5, clip: 0.2 } });
    expect(PRESETS["reinforce++"].loss).toMatchObject({ klEstimator: "k1", klPlace: "reward" });
    expect(PRESETS["reinforce++-baseline"].loss).toMatchObject({ klEstimator: "k2", klPlace: "loss" });
  });

  it.each(Object.entries(PRESETS))(
    "%s is an option, survives being written down, and has a section",
    (name, { notes, ...preset }) => {
      expect(parseFlags(["--run", "1", "--algorithm", name]).algorithm).toBe(name);
      expect(algorithmSchema.parse(JSON.parse(JSON.stringify(preset)))).toEqual(preset);
      const docs = readFileSync(new URL("../../docs/ALGORITHMS.md", import.meta.url), "utf8");
      expect(docs).toContain(`--algorithm ${name.replace("-baseline", "")}`);
      expect(docs).toContain(`\`${name}\``);
      expect(docs).toContain(notes.paper?.split(", ").at(-1) ?? "Ours.");
    },
  );
});
