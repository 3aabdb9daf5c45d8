import * as fc from "fast-check";
import { expect, test } from "vitest";
import type { Sample } from "../../../../trainer/engine/contract.ts";
import {
  dealMicrobatches,
  emptyScores,
  planMicrobatches,
  scatterScores,
} from "../../../../trainer/engine/onnx/microbatch.ts";

const sampleOf = (tokens: readonly number[], mask: readonly number[]): Sample => ({
  tokens: Int32Array.from(tokens),
  lossMask: Uint8Array.from(mask),
});

test("a batch ends at the last target, pads with 0 and points at the position before each target", () => {
  const samples = [
    sampleOf([5, 6, 7, 8], [0, 1, 0, 0]),
    sampleOf([9, 10, 11], [0, 0, 0]),
    sampleOf([1, 2, 3, 4], [0, 0, 1, 1]),
  ];
  const cotangents = samples.map(({ tokens }) => ({
    dLogprobs: Float32Array.from(tokens, (token) => token / 10),
    dValues: Float32Array.from(tokens),
  }));
  const [planned, ...others] = planMicrobatches(samples, cotangents, { maxTokens: 100, replicas: 1 });
  expect(others).toEqual([]);
  expect(planned).toEqual({
    microbatch: {
      batch: 2,
      time: 4,
      tokens: BigInt64Array.of(1n, 2n, 3n, 0n, 5n, 0n, 0n, 0n),
      rows: BigInt64Array.of(1n, 2n, 4n),
      targets: BigInt64Array.of(3n, 4n, 6n),
      dLogprobs: Float32Array.of(0.3, 0.4, 0.6),
      dEntropy: null,
      dValues: Float32Array.of(3, 4, 6),
    },
    sampleOf: Int32Array.of(2, 2, 0),
    positionOf: Int32Array.of(2, 3, 1),
  });
});

test("every target is in exactly one batch, within the limit, and scores return to where they came from", () => {
  const row = fc.array(fc.tuple(fc.nat(99), fc.boolean()), { minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(
      fc.array(row, { maxLength: 20 }),
      fc.integer({ min: 1, max: 40 }),
      fc.integer({ min: 1, max: 4 }),
      (rows, maxTokens, replicas) => {
        const samples = rows.map((entries) =>
          sampleOf(
            entries.map(([token]) => token),
            entries.map(([, target], t) => Number(target && t > 0)),
          ),
        );
        const plan = planMicrobatches(samples, null, { maxTokens, replicas });
        const longest = Math.max(0, ...samples.map(({ lossMask }) => lossMask.lastIndexOf(1)));
        for (const { microbatch } of plan) {
          expect(microbatch.tokens.length).toBe(microbatch.batch * microbatch.time);
          expect(microbatch.tokens.length).toBeLessThanOrEqual(Math.max(maxTokens, longest, 4));
        }
        const dealt = dealMicrobatches(plan, replicas);
        expect(dealt.flat()).toHaveLength(plan.length);
        const scores = emptyScores(samples);
        for (const planned of dealt.flat()) {
          // Scored as the target's token plus one, each row read back from the padded batch.
          const { tokens, rows: before, targets } = planned.microbatch;
          for (const [m, target] of targets.entries()) {
            const sample = samples[planned.sampleOf[m] ?? -1];
            const position = planned.positionOf[m] ?? -1;
            expect(sample?.tokens[position]).toBe(Number(target));
            expect(tokens[Number(before[m])]).toBe(BigInt(sample?.tokens[position - 1] ?? -1));
          }
          const logprobs = Float32Array.from(targets, (target) => Number(target) + 1);
          scatterScores(scores, planned, { logprobs, entropy: logprobs });
        }
        for (const [i, { tokens, lossMask }] of samples.entries()) {
          const expected = Float32Array.from(tokens, (token, t) => (lossMask[t] === 1 ? token + 1 : 0));
          expect(scores[i]?.logprobs).toEqual(expected);
        }
      },
    ),
  );
});

test("work is cut evenly for the replicas", () => {
  const samples = Array.from({ length: 8 }, () =>
    sampleOf(
      Array.from({ length: 11 }, () => 1),
      Array.from({ length: 11 }, (_, t) => Number(t > 0)),
    ),
  );
  const sizes = planMicrobatches(samples, null, { maxTokens: 70, replicas: 2 }).map(
    ({ microbatch }) => microbatch.batch,
  );
  expect(sizes).toEqual([4, 4]);
});
