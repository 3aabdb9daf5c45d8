import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { computeLoss, lossSchema } from "../../../trainer/loss/loss.ts";
import type { LossRow } from "../../../trainer/loss/loss-row.ts";

const config = lossSchema.parse({ type: "dpo", klCoefficient: 0.5 });

function row(given: Partial<LossRow> & Pick<LossRow, "rollout">, logRatio = 0, advantage = 0): LossRow {
  return {
    lossMask: Uint8Array.of(0, 1, 1),
    advantages: [0, advantage, advantage],
    behaviourLogprobs: [0, 0, 0],
    referenceLogprobs: [0, -1, -1],
    policyLogprobs: [0, -1 + logRatio / 2, -1 + logRatio / 2],
    ...given,
  };
}

describe("dpo", () => {
  it("is log 2 at the start, and pulls the chosen up as it pulls the rejected down", () => {
    const { loss, dLogprobs } = computeLoss([row({ rollout: 0 }, 0, 1), row({ rollout: 1 }, 0, -1)], config);
    expect(loss).toBeCloseTo(Math.LN2, 12);
    // β·σ(0) = 0.5·0.5 on every token.
    expect(dLogprobs).toEqual([Float32Array.of(0, -0.25, -0.25), Float32Array.of(0, 0.25, 0.25)]);
  });

  it("pulls less where the margin is already there", () => {
    const { loss, dLogprobs } = computeLoss([row({ rollout: 0 }, 2, 1), row({ rollout: 1 }, -2, -1)], config);
    // Margin 0.5·4 = 2.
    expect(loss).toBeCloseTo(Math.log1p(Math.exp(-2)), 12);
    expect(dLogprobs[0]?.[1]).toBeCloseTo(-0.5 / (1 + Math.exp(2)), 7);
  });

  it("takes each group's best and worst rollout with all their rows, and no pair of equals", () => {
    const rows = [
      row({ rollout: 0, group: 0 }, 0, 1),
      row({ rollout: 0, group: 0 }, 0, 1),
      row({ rollout: 1, group: 0 }, 0, 0),
      row({ rollout: 2, group: 0 }, 0, -1),
      row({ rollout: 3, group: 1 }, 0, 0.5),
      row({ rollout: 4, group: 1 }, 0, 0.5),
    ];
    const { loss, dLogprobs } = computeLoss(rows, config);
    expect(loss).toBeCloseTo(Math.LN2, 12);
    expect(dLogprobs.map((each) => each[1])).toEqual([-0.25, -0.25, 0, 0.25, 0, 0]);
    expect(computeLoss(rows.slice(4), config)).toMatchObject({ loss: 0 });
    expect(computeLoss([], config).loss).toBe(0);
  });

  it("does not change when reference and policy move together, and stays finite far away", () => {
    fc.assert(
      fc.property(
        fc.double({ min: -500, max: 500, noNaN: true }),
        fc.double({ min: -5, max: 5, noNaN: true }),
        (gap, by) => {
          const rows = [row({ rollout: 0 }, gap, 1), row({ rollout: 1 }, 0, -1)];
          const moved = rows.map((each) => ({
            ...each,
            policyLogprobs: Array.from(each.policyLogprobs, (value) => value + by),
            referenceLogprobs: Array.from(each.referenceLogprobs ?? [], (value) => value + by),
          }));
          const { loss } = computeLoss(rows, config);
          expect(Number.isFinite(loss)).toBe(true);
          expect(computeLoss(moved, config).loss).toBeCloseTo(loss, 9);
        },
      ),
    );
  });

  it("asks for the reference that it is measured from", () => {
    const { referenceLogprobs: _, ...bare } = row({ rollout: 0 });
    expect(() => computeLoss([bare], config)).toThrow("row 0 has no reference logprobs");
  });
});
