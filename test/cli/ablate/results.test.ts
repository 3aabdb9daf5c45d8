import { describe, expect, it } from "vitest";
import { armResults, cellResultSchema, outcomeOf, resultsJson, spread } from "../../../cli/ablate/results.ts";
import { arms, cellResult, GRID } from "./one-grid.ts";

describe("armResults", () => {
  it("is mean and standard deviation over the seeds that have ended, arm by arm", () => {
    const [identical, air] = arms();
    expect(identical?.runs.map(({ seed }) => seed)).toEqual(["1", "2"]);
    expect(identical?.reward?.mean).toBeCloseTo(0.85, 12);
    expect(identical?.reward?.sd).toBeCloseTo(Math.sqrt(0.005), 12);
    expect(identical?.firstTool?.mean).toBeCloseTo(0.425, 12);
    expect(identical?.seconds).toEqual({ mean: 20, sd: 0, values: [20, 20] });
    expect(air?.reward).toEqual({ mean: 0.5, sd: null, values: [0.5] });
  });

  it("has an arm without a run, and no numbers for it", () => {
    const [none] = armResults(GRID, new Map());
    expect(none).toMatchObject({ runs: [], reward: undefined, rolloutsPerSecond: undefined });
  });
});

describe("outcomeOf", () => {
  it("counts the rollouts that steps have claimed, over the time of the steps", () => {
    expect(outcomeOf(cellResult("1", 0.8)).rolloutsPerSecond).toBe((600 - 128 - 72) / 20);
  });

  it("takes the last quarter of the steps where there was no evaluation", () => {
    const { reward, firstTool } = outcomeOf(cellResult("1", null, [0, 0, 0, 0, 0, 0, 0.4, 0.6]));
    expect(reward).toBeCloseTo(0.5, 12);
    expect(firstTool).toBeCloseTo(0.25, 12);
  });
});

it("a run's result is read back as it was written", () => {
  const result = cellResult("1", 0.8);
  expect(cellResultSchema.parse(JSON.parse(JSON.stringify(result)))).toEqual(result);
});

it("results.json has the arms with every seed's value", () => {
  expect(resultsJson({ name: "credit", task: "flight", grid: GRID }, arms())).toMatchObject({
    name: "credit",
    axes: { credit: ["identical", "air"] },
    cells: 4,
    cells_finished: 3,
    arms: [
      { name: "credit identical", seeds: ["1", "2"], runs: ["ru_1", "ru_2"], reward: { values: [0.8, 0.9] } },
      { name: "credit air", settings: { credit: "air" }, reward: { mean: 0.5, sd: null } },
    ],
  });
});

it("the spread of nothing is not a number", () => {
  expect(spread([])).toBeUndefined();
  expect(spread([2, 4, 6])).toEqual({ mean: 4, sd: 2, values: [2, 4, 6] });
});
