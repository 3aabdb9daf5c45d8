/** What value.py computed with PyTorch, for the tests of the critic. */

import { readFileSync } from "node:fs";
import { z } from "zod";

const numbers = z.array(z.number());
const table = z.array(numbers);

const schema = z.object({
  rows: z.array(
    z.object({
      lossMask: numbers.transform((bits) => Uint8Array.from(bits)),
      sequenceOfToken: numbers,
      credits: numbers,
      policyLogprobs: numbers,
      referenceLogprobs: numbers,
      proximalValues: numbers,
      values: numbers,
    }),
  ),
  cases: z.array(
    z.object({
      gamma: z.number(),
      lambda: z.number(),
      klCoefficient: z.number(),
      coefficient: z.number(),
      clip: z.number(),
      advantages: table,
      returns: table,
      whitened: table,
      loss: z.number(),
      clipFraction: z.number(),
      explainedVariance: z.number(),
      dValues: table,
    }),
  ),
  models: z.array(
    z.object({
      family: z.string(),
      method: z.enum(["full", "lora"]),
      samples: z.array(z.object({ dValues: numbers, values: numbers })),
    }),
  ),
});

export const VALUES = schema.parse(JSON.parse(readFileSync(new URL("fixtures/value.json", import.meta.url), "utf8")));
