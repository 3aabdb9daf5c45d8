import { describe, expect, it } from "vitest";
import { GRIDS, gridName, makeGrid } from "../../../cli/ablate/grid.ts";
import { PRESETS } from "../../../trainer/algorithm.ts";

describe("makeGrid", () => {
  it("is every combination of the axes for each seed, seed by seed", () => {
    const grid = makeGrid({ credit: "identical,air", steps: "6", "group-size": "4,8" }, "1,2");
    expect(grid.axes).toEqual({ credit: ["identical", "air"], "group-size": ["4", "8"] });
    expect(grid.fixed).toEqual({ steps: "6" });
    expect(grid.arms.map(({ name }) => name)).toEqual([
      "credit identical, group-size 4",
      "credit identical, group-size 8",
      "credit air, group-size 4",
      "credit air, group-size 8",
    ]);
    expect(grid.cells.map(({ seed }) => seed).join("")).toBe("11112222");
    expect(grid.cells[5]?.settings).toEqual({ credit: "identical", "group-size": "8", steps: "6", seed: "2" });
  });

  it("keeps a cell in a folder that says all of its settings, whatever grid it is in", () => {
    const [alone] = makeGrid({ steps: "6", credit: "air" }, "2").cells;
    const among = makeGrid({ credit: "identical,air", steps: "6" }, "1,2").cells.find(
      ({ arm, seed }) => arm.name === "credit air" && seed === "2",
    );
    expect(alone?.folder).toBe("credit=air,seed=2,steps=6");
    expect(among?.folder).toBe(alone?.folder);
    const folders = makeGrid({ credit: "identical,air", steps: "6,7" }, "1,2").cells.map(({ folder }) => folder);
    expect(new Set(folders).size).toBe(8);
  });

  it("names a folder by a hash where the settings are no file's name, and the arm by the file", () => {
    const { cells, arms } = makeGrid({ algorithm: "grpo,/mine/new one.ts" }, "1");
    expect(cells[1]?.folder).toMatch(/^[0-9a-f]{24}$/);
    expect(cells[1]?.settings["algorithm"]).toBe("/mine/new one.ts");
    expect(arms[1]?.name).toBe("algorithm new one.ts");
  });

  it("counts a value that is given twice once, leaves lists whole, and takes switches", () => {
    const grid = makeGrid({ "group-size": "4, 4,8", roles: "main,rewriter", sync: true }, "1");
    expect(grid.axes).toEqual({ "group-size": ["4", "8"] });
    expect(grid.fixed).toEqual({ roles: "main,rewriter", sync: true });
  });

  it("is one arm where there is no axis", () => {
    const grid = makeGrid({ steps: "3" }, "1,2");
    expect(grid.arms).toEqual([{ name: "as given", settings: { steps: "3" } }]);
    expect(grid.cells).toHaveLength(2);
    expect(gridName(grid)).toBe("one");
    expect(gridName(makeGrid({ credit: "identical,air", "group-size": "4,8" }, "1"))).toBe("credit+group-size");
  });

  it.each([
    [{ credit: "identical,,air" }, "1", '--credit wants values with commas between, "identical,,air" came'],
    [{ credit: "identical,best" }, "1", "--credit: "],
    [{ "group-size": "8,1" }, "1", "--group-size: "],
    [{ steps: "3" }, "1,x", '--seeds wants whole numbers with commas between, "1,x" came'],
    [{ steps: "3" }, "", '--seeds wants whole numbers with commas between, "" came'],
    [{ loss: "reinforce", "clip-high": "0.3" }, "1", "--clip-high: reinforce has no such setting"],
  ])("refuses %j with seeds %j before anything runs", (given, seeds, sentence) => {
    expect(() => makeGrid(given, seeds)).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(sentence) }),
    );
  });

  it.each(Object.entries(GRIDS))("the grid %s is one that the trainer takes", (_, axes) => {
    expect(makeGrid(axes, "1").arms.length).toBeGreaterThan(2);
  });

  it("the grid of algorithms has every preset", () => {
    expect(makeGrid(GRIDS.algorithm, "1").axes["algorithm"]).toEqual(Object.keys(PRESETS));
  });
});
