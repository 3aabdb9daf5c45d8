import { expect, test } from "vitest";
import { armResults } from "../../../cli/ablate/results.ts";
import { ablationTable } from "../../../cli/ablate/table.ts";
import { COLOURED, PLAIN } from "../../../cli/terminal/style.ts";
import { arms, GRID } from "./one-grid.ts";

const cells = (text: string): string[][] => text.split("\n").map((line) => line.trimEnd().split(/ {2,}/));

test("has a line for each arm: mean ± deviation, and no ± where there is one seed", () => {
  expect(cells(ablationTable(arms(), "memory first", PLAIN))).toEqual([
    ["ARM", "SEEDS", "REWARD", "MEMORY FIRST", "CORRECT", "TIME OF STEPS", "ROLLOUTS/S"],
    ["credit identical", "2", "0.850 ± 0.071", "43% ± 4%", "21% ± 2%", "20s ± 0s", "20.0 ± 0.0"],
    ["credit air", "1", "0.500", "25%", "13%", "20s", "20.0"],
  ]);
});

test("only the arm that earned most is green", () => {
  const lines = ablationTable(arms(), "memory first", COLOURED).split("\n");
  expect(lines.filter((line) => line.includes("\u001B[32m")).map((line) => line.includes("0.850"))).toEqual([true]);
});

test("an arm that was not run has dashes", () => {
  const [, line] = cells(ablationTable(armResults(GRID, new Map()), "memory first", PLAIN));
  expect(line).toEqual(["credit identical", "0", "–", "–", "–", "–", "–"]);
});
