/** What algorithms.py computed with PyTorch, for the tests of credit, advantage and loss. */

import { readFileSync } from "node:fs";
import { z } from "zod";
import { lossSchema } from "../../trainer/loss/loss.ts";

const numbers = z.array(z.number());
const table = z.array(numbers);

const schema = z.object({
  rows: z.array(
    z.object({
      rollout: z.number(),
      group: z.number(),
      sequenceOfToken: numbers,
      lossMask: numbers.transform((bits) => Uint8Array.from(bits)),
      advantages: numbers,
      behaviourLogprobs: numbers,
      proximalLogprobs: numbers,
      policyLogprobs: numbers,
      referenceLogprobs: numbers,
      entropy: numbers,
    }),
  ),
  losses: z.array(
    z.object({
      config: lossSchema,
      tokensPerUpdate: z.number().optional(),
      loss: z.number(),
      dLogprobs: table,
      dEntropy: table,
    }),
  ),
  credits: z.array(
    z.object({
      gamma: z.number(),
      terminalWeight: z.number(),
      rewards: z.object({ total: z.number(), terminal: z.number(), intermediate_T: numbers }),
      identical: numbers,
      discounted: numbers,
      air: numbers,
    }),
  ),
  overlong: z.object({ maxTokens: z.number(), cacheTokens: z.number(), lengths: numbers, punishments: numbers }),
  groups: z.array(z.object({ credits: table, "group-mean": table, "group-mean-std": table, "leave-one-out": table })),
  batch: z.object({
    coefficient: z.number(),
    estimator: z.literal("k1"),
    epsilon: z.number(),
    penalised: table,
    whitened: table,
  }),
});

export const ALGORITHMS = schema.parse(
  JSON.parse(readFileSync(new URL("fixtures/algorithms.json", import.meta.url), "utf8")),
);

/** The largest difference between two tables of numbers of the same shape, relative to the larger of 1 and the value. */
export function largestDifference(ours: readonly ArrayLike<number>[], theirs: readonly (readonly number[])[]): number {
  if (ours.length !== theirs.length) return Infinity;
  return Math.max(
    0,
    ...theirs.flatMap((row, at) =>
      ours[at]?.length === row.length
        ? row.map((value, t) => Math.abs((ours[at]?.[t] ?? NaN) - value) / Math.max(1, Math.abs(value)))
        : [Infinity],
    ),
  );
}
