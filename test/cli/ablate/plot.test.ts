import { describe, expect, it } from "vitest";
import { ablationSvg, lineOf } from "../../../cli/ablate/plot.ts";
import { armResults } from "../../../cli/ablate/results.ts";
import { pngOf } from "../../../cli/terminal/png.ts";
import { arms, cellResult, GRID } from "./one-grid.ts";

const options = { title: "credit", subtitle: "three <runs>", firstToolName: "memory first" };

describe("lineOf", () => {
  it("is the mean over the runs between the lowest and the highest", () => {
    const line = lineOf([cellResult("1", 0.8), cellResult("2", 0.9, [0.3, 0.4, 0.5, 0.6])], "reward_mean");
    expect(line.steps).toEqual([1, 2, 3, 4]);
    expect(line.low).toEqual([0.1, 0.2, 0.3, 0.4]);
    expect(line.high).toEqual([0.3, 0.4, 0.5, 0.6]);
    for (const [at, mean] of line.mean.entries()) expect(mean).toBeCloseTo(0.2 + at / 10, 12);
  });

  it("has the steps that all runs have, and none where there is no run or no such metric", () => {
    expect(lineOf([cellResult("1", 0.8), cellResult("2", 0.9, [0.3, 0.4])], "reward_mean").steps).toEqual([1, 2]);
    expect(lineOf([], "reward_mean").steps).toEqual([]);
    expect(lineOf([cellResult("1", 0.8)], "no_such_metric").steps).toEqual([]);
  });
});

describe("ablationSvg", () => {
  it("has a line in each panel for each arm, a band where there are several seeds, and a legend with the numbers", () => {
    const svg = ablationSvg(arms(), options);
    expect(svg.match(/<path d="M[^"]+"/g)).toHaveLength(4);
    expect(svg.match(/<polygon/g)).toHaveLength(2);
    expect(svg).toContain(">credit identical<");
    expect(svg).toContain(">reward 0.850 ± 0.071 · memory first 43% ± 4% · 2 seeds<");
    expect(svg).toContain(">reward 0.500 · memory first 25% · 1 seed<");
    expect(svg).toContain("three &lt;runs&gt;");
  });

  it("draws higher values higher: the share's panel is 220 high from 0% to 100%", () => {
    const [path] = /(?<=<path d=")M[^"]+/.exec(ablationSvg(arms(), options)) ?? [];
    const heights = [...(path ?? "").matchAll(/[ML][\d.]+ ([\d.]+)/g)].map((match) => Number(match[1]));
    expect(heights).toHaveLength(4);
    // From a share of 0.1 to one of 0.25: the means of the two seeds' halves.
    expect((heights[0] ?? 0) - (heights[3] ?? 0)).toBeCloseTo(0.15 * 220, 1);
  });

  it("is a picture too where nothing has been run", async () => {
    const svg = ablationSvg(armResults(GRID, new Map()), options);
    expect(svg).not.toMatch(/NaN|Infinity/);
    expect(svg.match(/>not run</g)).toHaveLength(2);
    expect(Buffer.from((await pngOf(svg)).subarray(1, 4)).toString()).toBe("PNG");
  });
});
