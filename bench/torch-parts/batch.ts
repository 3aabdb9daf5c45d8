/** Batches of the torch benchmark, of random tokens from a fixed seed. */

import type { Cotangent, Sample } from "../../trainer/engine/contract.ts";
import { Random } from "../../trainer/engine/random.ts";
import type { BatchRollout } from "../update-parts/batch.ts";

/** Rows of these lengths, a part of whose tokens are targets, each pulled up. */
export function rowsOf(
  lengths: readonly number[],
  { vocab, targets }: { readonly vocab: number; readonly targets: number },
): { readonly samples: Sample[]; readonly cotangents: Cotangent[] } {
  const random = Random.seeded(2);
  const samples = lengths.map((length) => ({
    tokens: Int32Array.from({ length }, () => Math.floor(random.next() * vocab)),
    lossMask: Uint8Array.from({ length }, (_, t) => Number(t > 0 && (t === length - 1 || random.next() < targets))),
  }));
  const cotangents = samples.map(({ tokens }) => ({ dLogprobs: new Float32Array(tokens.length).fill(-1) }));
  return { samples, cotangents };
}

/** Groups of rollouts of one call each, all of one length: what a GPU's benchmark is usually measured on. */
export function longRollouts(
  groups: number,
  {
    size,
    prompt,
    response,
    vocab,
  }: { readonly size: number; readonly prompt: number; readonly response: number; readonly vocab: number },
): BatchRollout[] {
  const random = Random.seeded(7);
  const ids = (length: number): number[] => Array.from({ length }, () => Math.floor(random.next() * vocab));
  return Array.from({ length: groups }, (_, group) => group).flatMap((group) => {
    const shared = ids(prompt);
    return Array.from({ length: size }, (_, at) => ({
      group,
      reward: at % 2,
      calls: [{ prompt: shared, response: ids(response) }],
    }));
  });
}
