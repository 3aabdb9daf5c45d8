import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { baselineStateSchema, NO_BASELINE } from "../advantage/lone-baseline.ts";
import { replayStateSchema } from "../batch/replay.ts";
import type { Engine } from "../engine/contract.ts";
import { keptSteps } from "./retention.ts";
import { proveWholeFolder, removeWholeFolders, writeWholeFolder } from "./whole-folder.ts";

/**
 * Checkpoints of a run: `checkpoints/000013/` holds the engine's state after 13 steps and the loop's own state beside
 * it. Together with the store they are all that a restarted trainer needs.
 */

/** The loop's state after some steps. */
export const loopStateSchema = z.strictObject({
  run: z.string(),
  policy: z.string(),
  method: z.enum(["lora", "full"]),
  seed: z.int(),
  /** Steps trained. */
  step: z.int().min(0),
  /** The version of the last step is not among those it made until it is published (publish.ts). */
  lineage: z.strictObject({ base: z.int(), made: z.array(z.int()) }),
  /** The batch of the last step and its metrics, to mark it trained again after a crash; null before the first. */
  lastBatch: z.strictObject({ id: z.string(), metrics: z.record(z.string(), z.number()) }).nullable(),
  /** Sums over the run, also over its earlier starts. */
  sums: z.strictObject({
    wallSeconds: z.number(),
    /** Of the steps alone, without evaluations and starts. */
    stepSeconds: z.number(),
    trainedTokens: z.number(),
    trainSeconds: z.number(),
    decodedTokens: z.number(),
    decodeSeconds: z.number(),
  }),
  /** Rewards of the train rollouts that each of the run's versions sampled. */
  rewards: z.array(z.strictObject({ version: z.int(), sum: z.number(), count: z.int() })),
  /** What rollouts that are alone in their groups are compared with. */
  baseline: baselineStateSchema.default(NO_BASELINE),
  /** Groups that may be trained on again. */
  replay: replayStateSchema.default([]),
});
export type LoopState = z.infer<typeof loopStateSchema>;

const STATE = "state.json";
const ENGINE = "engine";

/** Writes the checkpoint of `state.step`, then removes those before the newest `keep`, save the best (retention.ts). */
export async function saveCheckpoint(
  dir: string,
  { engine, state, keep }: { readonly engine: Pick<Engine, "save">; readonly state: LoopState; readonly keep: number },
): Promise<void> {
  const name = folderName(state.step);
  await rm(join(dir, name), { recursive: true, force: true });
  await writeWholeFolder(
    join(dir, name),
    async (aside) => {
      await engine.save(join(aside, ENGINE));
      await writeFile(join(aside, STATE), `${JSON.stringify(state, null, 2)}\n`);
    },
    { name },
  );
  const steps = (await checkpointNames(dir)).map(Number);
  const kept = new Set(keptSteps(steps, state, keep));
  await removeWholeFolders(dir, steps.filter((step) => !kept.has(step)).map(folderName));
}

/**
 * Reads the newest checkpoint's state and proves its files; the engine loads it with {@link engineFolder}.
 *
 * A damaged newest checkpoint is an error and not a reason to take the one before: the store may have marked its batch
 * trained, and training on from older weights would give a later version a history that it does not have.
 * @returns undefined when there is none
 * @throws FulgurError ERR_CHECKPOINT when it is torn or altered
 */
export async function readNewestCheckpoint(dir: string): Promise<{ state: LoopState; folder: string } | undefined> {
  const name = (await checkpointNames(dir)).at(-1);
  if (name === undefined) return undefined;
  const folder = join(dir, name);
  const proven = await proveWholeFolder(folder);
  if (proven?.manifest.name !== name) {
    throw new FulgurError(
      "ERR_CHECKPOINT",
      `${folder} holds the checkpoint ${proven?.manifest.name ?? "of nobody"}; restore the folder, or begin another run`,
    );
  }
  const parsed = loopStateSchema.safeParse(JSON.parse(await readFile(join(folder, STATE), "utf8")));
  if (!parsed.success) {
    throw new FulgurError(
      "ERR_CHECKPOINT",
      `${folder} was written by another version of the trainer; begin another run`,
    );
  }
  return { state: parsed.data, folder };
}

/** Where a checkpoint keeps the engine's part. */
export function engineFolder(checkpoint: string): string {
  return join(checkpoint, ENGINE);
}

async function checkpointNames(dir: string): Promise<string[]> {
  const names = await readdir(dir).catch((error: unknown) => {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return [];
    throw error;
  });
  return names.filter((name) => /^\d{6,}$/.test(name)).toSorted();
}

function folderName(step: number): string {
  return String(step).padStart(6, "0");
}
