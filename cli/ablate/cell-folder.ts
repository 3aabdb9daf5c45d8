import { access, mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { newId } from "#shared/ids.ts";
import { runSettingsSchema } from "../run-choice.ts";
import { readJson, writeWhole, type StateDir } from "../state.ts";
import type { Cell, Grid } from "./grid.ts";
import { cellResultSchema, type CellResult } from "./results.ts";

/** What an ablation keeps of each cell: `cells/<settings>/cell.json` once it is begun, `result.json` once it has ended. */

const begunSchema = z.object({ run_id: z.string(), settings: runSettingsSchema });

/** The cell's run: a new one, or the one that it was begun with, to be gone on with. */
export async function beginCell(state: StateDir, cell: Cell): Promise<string> {
  const folder = folderOf(state, cell);
  await mkdir(folder, { recursive: true });
  const begun = await readJson(join(folder, "cell.json"), begunSchema);
  if (begun !== undefined) return begun.run_id;
  const runId = newId("run");
  await writeWhole(
    join(folder, "cell.json"),
    `${JSON.stringify({ run_id: runId, settings: cell.settings }, null, 2)}\n`,
  );
  return runId;
}

/**
 * Which of the cells was cut short and is to be gone on with before any other is begun; a run that is resumed goes on
 * with its version numbers, so that there may be one alone. What was cut short in another grid is begun anew when that
 * grid is run again.
 */
export async function cellCutShort(state: StateDir, cells: readonly Cell[]): Promise<Cell | undefined> {
  const folders = await readdir(join(state.root, "cells")).catch(() => []);
  const begun: string[] = [];
  for (const folder of folders) {
    if (!(await isThere(join(state.root, "cells", folder, "result.json")))) begun.push(folder);
  }
  const found = cells.find(({ folder }) => begun.includes(folder));
  for (const folder of begun) {
    if (folder !== found?.folder) await rm(join(state.root, "cells", folder), { recursive: true, force: true });
  }
  return found;
}

export async function endCell(state: StateDir, cell: Cell, result: CellResult): Promise<void> {
  await writeWhole(join(folderOf(state, cell), "result.json"), `${JSON.stringify(result, null, 2)}\n`);
}

/** The grid's cells that have ended, by folder. */
export async function endedCells(state: StateDir, { cells }: Pick<Grid, "cells">): Promise<Map<string, CellResult>> {
  const results = new Map<string, CellResult>();
  for (const cell of cells) {
    const result = await readJson(join(folderOf(state, cell), "result.json"), cellResultSchema);
    if (result !== undefined) results.set(cell.folder, result);
  }
  return results;
}

function folderOf(state: StateDir, { folder }: Cell): string {
  return join(state.root, "cells", folder);
}

async function isThere(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}
