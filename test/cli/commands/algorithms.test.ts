import { describe, expect, it } from "vitest";
import { algorithmJson, algorithmNamed, namedAlgorithms } from "../../../cli/commands/algorithms.ts";
import { PRESETS } from "../../../trainer/algorithm.ts";

describe("fulgur algorithms", () => {
  it("has every preset, the default first", () => {
    const names = namedAlgorithms().map((each) => each.name);
    expect(names[0]).toBe("lightning");
    expect(names.toSorted()).toEqual(Object.keys(PRESETS).toSorted());
    expect(namedAlgorithms().filter((each) => each.isDefault)).toHaveLength(1);
  });

  it("gives programs the notes and every setting, in snake_case", () => {
    expect(algorithmJson(algorithmNamed("dapo"))).toMatchObject({
      name: "dapo",
      is_default: false,
      paper: "DAPO, Yu et al. 2025, arXiv:2503.14476",
      data_rate: expect.stringContaining("high"),
      needs_critic: false,
      credit: { type: "identical", overlong: { max_tokens: 20_480, cache_tokens: 4096 } },
      advantage: { type: "group-mean-std", epsilon: 1e-6 },
      loss: { type: "ppo-clip", clip_low: 0.2, clip_high: 0.28, importance: { type: "truncated", cap: 2 } },
    });
  });

  it("says which of them needs a critic", () => {
    expect(algorithmJson(algorithmNamed("ppo"))).toMatchObject({
      needs_critic: true,
      advantage: { type: "gae", gamma: 1, lambda: 1, value: { coefficient: 0.5, clip: 0.2 } },
    });
  });

  it("names what there is where a name is unknown", () => {
    expect(() => algorithmNamed("a2c")).toThrow(
      expect.objectContaining({
        code: "ERR_CONFIG",
        message: expect.stringMatching(/^there is no algorithm a2c; there are lightning, .*cispo/),
      }),
    );
  });
});
