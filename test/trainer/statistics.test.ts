import { describe, expect, it } from "vitest";
import { Random } from "../../trainer/engine/random.ts";
import { meanEstimate, rateEstimate } from "../../trainer/statistics.ts";

describe("meanEstimate", () => {
  it("is Student's interval", () => {
    // Mean 3, standard deviation √2.5, t(0.975, 4) = 2.7764: 3 ± 1.9632.
    const { mean, low, high } = meanEstimate([1, 2, 3, 4, 5]);
    expect(mean).toBe(3);
    // The expansion of t is within 1e-2 at 4 degrees of freedom.
    expect(low).toBeCloseTo(3 - 1.9632, 2);
    expect(high).toBeCloseTo(3 + 1.9632, 2);
  });

  it("covers the truth in 95 of 100 samples", () => {
    const random = Random.seeded(5);
    let covered = 0;
    for (let trial = 0; trial < 2000; trial += 1) {
      const { low, high } = meanEstimate(Array.from({ length: 20 }, () => random.next()));
      if (low <= 0.5 && 0.5 <= high) covered += 1;
    }
    // Three standard errors of a rate of 0.95 over 2,000 trials are 0.015.
    expect(Math.abs(covered / 2000 - 0.95)).toBeLessThan(0.015);
  });

  it("has no interval to tell for one value or none", () => {
    expect(meanEstimate([2])).toEqual({ mean: 2, low: 2, high: 2 });
    expect(meanEstimate([])).toEqual({ mean: 0, low: 0, high: 0 });
  });
});

describe("rateEstimate", () => {
  it("is Wilson's interval", () => {
    // Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 15 of 148 gives 0.0624 to 0.1605.
    const { low, high } = rateEstimate(81, 263);
    expect([low.toFixed(4), high.toFixed(4)]).toEqual(["0.2553", "0.3662"]);
    const second = rateEstimate(15, 148);
    expect([second.low.toFixed(4), second.high.toFixed(4)]).toEqual(["0.0624", "0.1605"]);
  });

  it("stays within 0 and 1 at the ends", () => {
    expect(rateEstimate(0, 20)).toMatchObject({ mean: 0, low: 0 });
    expect(rateEstimate(20, 20)).toMatchObject({ mean: 1, high: 1 });
    expect(rateEstimate(0, 0)).toEqual({ mean: 0, low: 0, high: 0 });
  });
});
