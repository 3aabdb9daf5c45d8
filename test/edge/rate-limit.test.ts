import { describe, expect, it } from "vitest";
import { rateLimit } from "../../edge/rate-limit.ts";

/** How many of `count` requests at one time are let through. */
function through(take: () => void, count: number): number {
  let passed = 0;
  for (let n = 0; n < count; n++) {
    try {
      take();
      passed++;
    } catch {
      // refused
    }
  }
  return passed;
}

describe("rateLimit", () => {
  it("lets through a minute's worth at once, and so many a minute from then on", () => {
    const limit = rateLimit();
    expect(through(() => limit.take("a", 60, 0), 100)).toBe(60);
    let later = 0;
    for (let second = 1; second <= 60; second++) later += through(() => limit.take("a", 60, second * 1000), 10);
    expect(later).toBe(60);
  });

  it("counts each key by itself, and does not save up more than a minute's worth", () => {
    const limit = rateLimit();
    expect(through(() => limit.take("a", 5, 0), 10)).toBe(5);
    expect(through(() => limit.take("b", 5, 0), 10)).toBe(5);
    expect(through(() => limit.take("a", 5, 3_600_000), 10)).toBe(5);
  });

  it("says when to come back, and gives nothing for a clock that went back", () => {
    const limit = rateLimit();
    limit.take("a", 1, 60_000);
    expect(() => limit.take("a", 1, 45_000)).toThrow(expect.objectContaining({ retryAfterSeconds: 60 }));
    expect(() => limit.take("a", 1, 75_000)).toThrow(expect.objectContaining({ retryAfterSeconds: 30 }));
  });
});
