import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { beginCell, cellCutShort, endCell, endedCells } from "../../../cli/ablate/cell-folder.ts";
import { stateDir, type StateDir } from "../../../cli/state.ts";
import { cellResult, GRID } from "./one-grid.ts";

let state: StateDir;
beforeEach(async () => {
  state = stateDir(await mkdtemp(join(tmpdir(), "fulgur-cells-")));
});
afterEach(() => rm(state.root, { recursive: true, force: true }));

const [first, second] = GRID.cells;
if (first === undefined || second === undefined) throw new Error("the grid has no cells");

test("a cell that was begun goes on with its run, and no other cell does", async () => {
  const run = await beginCell(state, first);
  expect(run).toMatch(/^ru_/);
  expect(await beginCell(state, first)).toBe(run);
  expect(await beginCell(state, second)).not.toBe(run);
  expect(await endedCells(state, GRID)).toEqual(new Map());
});

test("a cell that has ended is found with its result", async () => {
  await beginCell(state, first);
  await endCell(state, first, cellResult("1", 0.8));
  expect(await endedCells(state, GRID)).toEqual(new Map([[first.folder, cellResult("1", 0.8)]]));
});

test("a result that cannot be read is none: the cell is run again", async () => {
  await beginCell(state, first);
  await writeFile(join(state.root, "cells", first.folder, "result.json"), '{"run_id":');
  expect(await endedCells(state, GRID)).toEqual(new Map());
});

test("the cell that was cut short is the next, and what another grid has left is begun anew", async () => {
  expect(await cellCutShort(state, GRID.cells)).toBeUndefined();
  await beginCell(state, first);
  await endCell(state, first, cellResult("1", 0.8));
  const run = await beginCell(state, second);
  expect(await cellCutShort(state, GRID.cells.slice(1))).toBe(second);
  expect(await beginCell(state, second)).toBe(run);
  // Another grid, in which the second cell is not.
  expect(await cellCutShort(state, GRID.cells.slice(2))).toBeUndefined();
  expect(await beginCell(state, second)).not.toBe(run);
  expect((await endedCells(state, GRID)).size).toBe(1);
});
