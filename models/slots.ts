/** How well a model copies: the probability it gives to the right token of each kind of slot. */

import { AIRLINES, CITIES, TRAVELLERS, WHENS } from "../edge/agents/flight/world.ts";
import type { Engine } from "../trainer/engine/contract.ts";
import type { Tokenizer } from "../trainer/model/tokenizer.ts";
import { FIRST_HELD_OUT, sampleOf } from "./batches.ts";
import { makeTrace } from "./traces.ts";

/** Mean probability of the right token, by kind of slot. */
export type SlotAccuracy = Readonly<Record<SlotKind, number>>;

/** What is copied. */
export type SlotKind = "traveller" | "city" | "when" | "airline" | "number";

const POOLS: Readonly<Record<SlotKind, readonly string[]>> = {
  traveller: TRAVELLERS,
  city: CITIES,
  when: WHENS,
  airline: AIRLINES,
  number: Array.from({ length: 100 }, (_, number) => String(number).padStart(2, "0")),
};

/**
 * Scores held-out Memory → Search → Answer runs, whose every slot follows from what came before.
 * @param count runs
 */
export async function slotAccuracy(engine: Engine, tokenizer: Tokenizer, count: number): Promise<SlotAccuracy> {
  const kinds = slotKinds(tokenizer);
  const samples = Array.from({ length: count }, (_, i) =>
    sampleOf(makeTrace(FIRST_HELD_OUT + i, "memory_search_answer"), tokenizer),
  );
  const scores = await engine.score(samples);
  const sums: Record<SlotKind, number> = { traveller: 0, city: 0, when: 0, airline: 0, number: 0 };
  const counts = { ...sums };
  for (const [row, { tokens, lossMask }] of samples.entries()) {
    for (const [t, token] of tokens.entries()) {
      const kind = kinds.get(token);
      if (kind === undefined || lossMask[t] !== 1) continue;
      sums[kind] += Math.exp(scores[row]?.logprobs[t] ?? -Infinity);
      counts[kind] += 1;
    }
  }
  const mean = (kind: SlotKind): number => sums[kind] / counts[kind];
  return {
    traveller: mean("traveller"),
    city: mean("city"),
    when: mean("when"),
    airline: mean("airline"),
    number: mean("number"),
  };
}

/** The kind of slot that a token fills, for every token of the pools. */
export function slotKinds(tokenizer: Tokenizer): Map<number, SlotKind> {
  const kinds = new Map<number, SlotKind>();
  for (const kind of ["traveller", "city", "when", "airline", "number"] as const) {
    for (const word of POOLS[kind]) {
      const id = tokenizer.idOf(word);
      if (id !== undefined) kinds.set(id, kind);
    }
  }
  return kinds;
}
