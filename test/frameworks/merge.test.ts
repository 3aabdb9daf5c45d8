import { expect, it } from "vitest";
import { measureMerges } from "../../bench/merge-parts/measure.ts";

it(
  "every framework's turns go on in one training row, though none gives the model's text back as it was",
  { timeout: 240_000 },
  async () => {
    const cases = await measureMerges({ rollouts: { contrary: 2 } });
    const expected = cases.map(({ framework, isExact }) => ({
      framework,
      isExact,
      // Two runs, streamed and not, of six calls each.
      mergeable: 10,
      merged: isExact ? 10 : 0,
      skipped: 0,
      failed: [],
    }));
    expect(cases).toMatchObject(expected);
    expect(cases).toHaveLength(2 * 14);
  },
);
