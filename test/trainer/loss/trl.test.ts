import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";
import { largestDifference } from "../../oracle/fixtures.ts";
import { findPython, hasModule, runOracle } from "../../oracle/python.ts";

const table = z.array(z.array(z.number()));
const fixture = z
  .object({
    lossMask: table,
    advantages: z.array(z.number()),
    behaviourLogprobs: table,
    proximalLogprobs: table,
    policyLogprobs: table,
    referenceLogprobs: table,
    cases: z.array(
      z.object({
        trl: z.looseObject({ loss_type: z.string() }),
        config: lossSchema,
        loss: z.number(),
        dLogprobs: table,
      }),
    ),
  })
  .parse(JSON.parse(readFileSync(new URL("../../oracle/fixtures/trl.json", import.meta.url), "utf8")));

/** One answer to a row, padded at its end. */
const rows: LossRow[] = fixture.lossMask.map((bits, at) => ({
  rollout: at,
  lossMask: Uint8Array.from(bits),
  advantages: bits.map(() => fixture.advantages[at] ?? NaN),
  behaviourLogprobs: fixture.behaviourLogprobs[at] ?? [],
  proximalLogprobs: fixture.proximalLogprobs[at] ?? [],
  policyLogprobs: fixture.policyLogprobs[at] ?? [],
  referenceLogprobs: fixture.referenceLogprobs[at] ?? [],
}));

describe("computeLoss against TRL", () => {
  it.each(fixture.cases.map((each) => [`TRL's ${JSON.stringify(each.trl)}`, each] as const))(
    "%s",
    (_, { config, loss, dLogprobs }) => {
      const ours = computeLoss(rows, config);
      // Both are double precision; our derivatives are handed over in float32.
      expect(Math.abs(ours.loss - loss)).toBeLessThan(1e-12);
      expect(largestDifference(ours.dLogprobs, dLogprobs)).toBeLessThan(1e-7);
    },
  );

  it("the cases clip at both bounds", () => {
    const found = fixture.cases.map(({ config }) => computeLoss(rows, config).metrics);
    expect(Math.max(...found.map((each) => each.clip_low_fraction))).toBeGreaterThan(0.05);
    expect(Math.max(...found.map((each) => each.clip_high_fraction))).toBeGreaterThan(0.05);
  });

  const python = findPython();
  it.skipIf(python === null || !hasModule(python, "trl"))("the committed fixture is what TRL computes now", () => {
    expect(runOracle(python ?? "", "trl_losses.py", ["--check"]).trim()).toBe("trl.json agrees");
  });
});
