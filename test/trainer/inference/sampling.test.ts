import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { drawToken, topAlternatives, uniformAt } from "../../../trainer/inference/sampling.ts";

const PLAIN = { temperature: 1, topP: 1, topK: 0, seed: 0 };
const probabilities = Float32Array.of(0.1, 0.4, 0.2, 0.25, 0.05);

describe("drawing", () => {
  test("a uniform number picks the token whose interval it falls into", () => {
    const drawn = [0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, 0.94, 0.96, 1 - 2 ** -53].map(
      (uniform) => drawToken(probabilities, PLAIN, uniform).token,
    );
    expect(drawn).toEqual([0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
  });

  test("the log-probability is that of the drawn token", () => {
    expect(drawToken(probabilities, PLAIN, 0.3).logprob).toBeCloseTo(Math.log(0.4), 6);
  });

  test("greedy takes the most probable, ties to the lower id", () => {
    const greedy = { ...PLAIN, temperature: 0 };
    expect(drawToken(probabilities, greedy, 0.99)).toEqual({ token: 1, logprob: Math.log(Math.fround(0.4)) });
    expect(drawToken(Float32Array.of(0.5, 0.5), greedy, 0.99).token).toBe(0);
  });

  test("top-k renormalises what it keeps", () => {
    const options = { ...PLAIN, topK: 2 };
    expect(drawToken(probabilities, options, 0.6).token).toBe(1);
    expect(drawToken(probabilities, options, 0.63)).toMatchObject({ token: 3 });
    expect(drawToken(probabilities, options, 0.63).logprob).toBeCloseTo(Math.log(0.25 / 0.65), 6);
  });

  test("top-p keeps the smallest set that reaches it", () => {
    const options = { ...PLAIN, topP: 0.6 };
    expect(drawToken(probabilities, options, 0.999)).toMatchObject({ token: 3 });
    expect(drawToken(probabilities, options, 0).logprob).toBeCloseTo(Math.log(0.4 / 0.65), 6);
    expect(drawToken(probabilities, { ...PLAIN, topP: 0.01 }, 0.999)).toEqual({ token: 1, logprob: 0 });
  });

  test("a token without probability is never drawn", () => {
    fc.assert(
      fc.property(
        fc
          .array(fc.constantFrom(0, 0, 0.1, 0.7), { minLength: 1, maxLength: 20 })
          .filter((row) => row.some((p) => p > 0)),
        fc.double({ min: 0, max: 1 - 2 ** -53, noNaN: true }),
        (row, uniform) => {
          expect(row[drawToken(Float32Array.from(row), PLAIN, uniform).token]).toBeGreaterThan(0);
        },
      ),
    );
  });

  test("weights that gave no numbers are an error and not a token", () => {
    expect(() => drawToken(Float32Array.of(NaN, NaN), PLAIN, 0.5)).toThrow(/weights finite/);
  });
});

describe("alternatives", () => {
  test("come most probable first, and as many as asked for", () => {
    const found = topAlternatives(probabilities, PLAIN, 3);
    expect(found.map(({ token }) => token)).toEqual([1, 3, 2]);
    expect(found[0]?.logprob).toBeCloseTo(Math.log(0.4), 6);
  });

  test("are of the restricted distribution where one was sampled from", () => {
    const found = topAlternatives(probabilities, { ...PLAIN, topK: 2 }, 5);
    expect(found.map(({ token }) => token)).toEqual([1, 3]);
    expect(found[1]?.logprob).toBeCloseTo(Math.log(0.25 / 0.65), 6);
  });
});

describe("uniform numbers", () => {
  test("depend on seed and position only, and spread evenly", () => {
    const numbers = Array.from({ length: 20_000 }, (_, i) => uniformAt(42, i));
    expect(numbers).toEqual(Array.from({ length: 20_000 }, (_, i) => uniformAt(42, i)));
    const counts = Array.from({ length: 10 }, (_, tenth) => numbers.filter((u) => Math.floor(u * 10) === tenth).length);
    // A tenth of 20,000 with a standard deviation of 42; five of them allow for no luck.
    for (const count of counts) expect(Math.abs(count - 2000)).toBeLessThan(212);
    expect(new Set(numbers).size).toBe(20_000);
  });

  test("neighbouring and large seeds are unrelated", () => {
    const first = [0, 1, 2, -1, 2 ** 32, 2 ** 32 + 1, Number.MAX_SAFE_INTEGER].map((seed) => uniformAt(seed, 0));
    expect(new Set(first).size).toBe(first.length);
    const mean = Array.from({ length: 5000 }, (_, seed) => uniformAt(seed, 0)).reduce((a, b) => a + b, 0) / 5000;
    expect(Math.abs(mean - 0.5)).toBeLessThan(0.02);
  });
});
