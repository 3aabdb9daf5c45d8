import { beforeAll, describe, expect, it } from "vitest";
import { batchOf, FIRST_HELD_OUT, sampleOf } from "../../models/batches.ts";
import { RECIPE } from "../../models/recipe.ts";
import { makeTrace } from "../../models/traces.ts";
import { loadTokenizer, type Tokenizer } from "../../trainer/model/tokenizer.ts";

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await loadTokenizer("models/flight");
});

const AFTER_DRILLS = RECIPE.drillTokens;

describe("batchOf", () => {
  it("is a function of the step and the seed, so that a resumed run sees what an unbroken one would", () => {
    expect(batchOf(9, AFTER_DRILLS, tokenizer, 0)).toEqual(batchOf(9, AFTER_DRILLS, tokenizer, 0));
    expect(batchOf(9, AFTER_DRILLS, tokenizer, 1)).not.toEqual(batchOf(9, AFTER_DRILLS, tokenizer, 0));
  });

  it("holds drills only at the start, traces in nine of ten steps later", () => {
    for (let step = 0; step < 20; step++)
      expect(batchOf(step, 0, tokenizer, 0).samples).toHaveLength(2 * RECIPE.traces);
    const traces = Array.from({ length: 60 }, (_, step) => batchOf(step, AFTER_DRILLS, tokenizer, 0)).filter(
      ({ samples }) => samples.length === RECIPE.traces,
    );
    expect(traces.length).toBeGreaterThan(45);
    expect(traces.length).toBeLessThan(60);
  });

  it("counts its tokens and targets, and never comes near the held-out traces", () => {
    const { samples, tokens, targets } = batchOf(4, AFTER_DRILLS, tokenizer, 0);
    expect(tokens).toBe(samples.flatMap((sample) => [...sample.tokens]).length);
    expect(targets).toBe(samples.flatMap((sample) => [...sample.lossMask]).filter((bit) => bit === 1).length);
    expect(16 * 2 ** 22).toBeLessThan(FIRST_HELD_OUT);
  });
});

describe("sampleOf", () => {
  it("masks what the assistant says, its end of turn included, and nothing else", () => {
    const trace = makeTrace(3, "memory_search_answer");
    const { tokens, lossMask } = sampleOf(trace, tokenizer);
    const trained = [...tokens].filter((_, t) => lossMask[t] === 1);
    const said = trace.segments.filter(({ trained }) => trained).map(({ text }) => text);
    expect(trained.flatMap((token) => [...tokenizer.bytesOf(token)])).toEqual([...Buffer.from(said.join(""))]);
    expect(trained.filter((token) => token === tokenizer.idOf("<|im_end|>"))).toHaveLength(3);
  });
});
