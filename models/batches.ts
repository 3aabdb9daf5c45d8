/** Traces as training rows: token ids and loss masks, one batch for each step, a function of the step alone. */

import { randomStream } from "../edge/agents/flight/world.ts";
import type { Sample } from "../trainer/engine/contract.ts";
import type { Tokenizer } from "../trainer/model/tokenizer.ts";
import { RECIPE } from "./recipe.ts";
import { makeDrill, makeTrace, type Trace } from "./traces.ts";

/** What one step is trained on. */
export interface Batch {
  readonly samples: readonly Sample[];
  /** All tokens, trained on or not. */
  readonly tokens: number;
  /** Tokens that are trained on. */
  readonly targets: number;
}

/** Where the held-out traces begin; no step reaches them. */
export const FIRST_HELD_OUT = 2 ** 27;

/**
 * The batch of a step.
 * @param tokensBefore tokens of all steps before; the first {@link RECIPE.drillTokens} are drills
 * @param seed shifts the traces, so that another seed sees others
 */
export function batchOf(step: number, tokensBefore: number, tokenizer: Tokenizer, seed: number): Batch {
  const isDrill = tokensBefore < RECIPE.drillTokens || randomStream(seed, `step ${step}`)() < RECIPE.drillShare;
  const count = isDrill ? 2 * RECIPE.traces : RECIPE.traces;
  const first = (seed % 16) * 2 ** 22 + step * count;
  const samples = Array.from({ length: count }, (_, i) =>
    sampleOf(isDrill ? makeDrill(first + i) : makeTrace(first + i), tokenizer),
  );
  return {
    samples,
    tokens: samples.reduce((sum, { tokens }) => sum + tokens.length, 0),
    targets: samples.reduce((sum, { lossMask }) => sum + lossMask.reduce((ones, bit) => ones + bit, 0), 0),
  };
}

/** A trace's tokens, stretch by stretch; stretches meet where the tokenizer splits anyway (a test holds it to that). */
export function sampleOf(trace: Trace, tokenizer: Tokenizer): Sample {
  const stretches = trace.segments.map(({ text, trained }) => ({ ids: tokenizer.encode(text), trained }));
  const length = stretches.reduce((sum, { ids }) => sum + ids.length, 0);
  const tokens = new Int32Array(length);
  const lossMask = new Uint8Array(length);
  let at = 0;
  for (const { ids, trained } of stretches) {
    tokens.set(ids, at);
    lossMask.fill(trained ? 1 : 0, at, at + ids.length);
    at += ids.length;
  }
  return { tokens, lossMask };
}
