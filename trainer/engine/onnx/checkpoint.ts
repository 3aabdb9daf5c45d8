/** The tensors of this engine's checkpoints; the folder around them is every engine's (../checkpoint.ts). */

import { join } from "node:path";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { readSafetensors, type Tensor, writeSafetensors } from "../../model/safetensors.ts";
import { CHECKPOINT_FILES, type CheckpointState, proveCheckpointFolder, writeCheckpointFolder } from "../checkpoint.ts";

/** All that a run needs to go on bit for bit. */
export interface Checkpoint extends CheckpointState {
  readonly weights: ReadonlyMap<string, Tensor>;
  readonly firstMoments: ReadonlyMap<string, Tensor>;
  readonly secondMoments: ReadonlyMap<string, Tensor>;
}

/**
 * Writes a checkpoint folder. One that is there already is replaced.
 * @throws FulgurError ERR_DISK when it cannot be written
 */
export async function writeCheckpoint(dir: string, checkpoint: Checkpoint): Promise<void> {
  const { weights, firstMoments, secondMoments } = checkpoint;
  await writeCheckpointFolder(dir, checkpoint, async (aside) => {
    for (const [i, tensors] of [weights, firstMoments, secondMoments].entries()) {
      await writeSafetensors(join(aside, CHECKPOINT_FILES[i] ?? ""), tensors);
    }
  });
}

/**
 * Reads a checkpoint folder and proves its files.
 * @param identity what the engine is; a checkpoint of anything else is refused
 * @throws FulgurError ERR_CHECKPOINT when it is missing, torn, altered or foreign
 */
export async function readCheckpoint(dir: string, identity: string): Promise<Checkpoint> {
  const state = await proveCheckpointFolder(dir, identity);
  const tensors: Map<string, Tensor>[] = [];
  for (const file of CHECKPOINT_FILES) {
    try {
      tensors.push(await readSafetensors(join(dir, file)));
    } catch (cause) {
      throw new FulgurError(
        "ERR_CHECKPOINT",
        `${dir} is torn: ${messageOf(cause)} Resume from an earlier checkpoint.`,
        { cause },
      );
    }
  }
  const [weights = new Map(), firstMoments = new Map(), secondMoments = new Map()] = tensors;
  return { ...state, weights, firstMoments, secondMoments };
}
