import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { AGGREGATIONS, tokenWeights } from "./aggregate.ts";
import { importanceSchema } from "./importance.ts";
import { k3 } from "./kl.ts";
import type { LossRow } from "./loss-row.ts";
import { ppoClipTerm } from "./ppo-clip.ts";
import { reinforceTerm } from "./reinforce.ts";
import type { SurrogateTerm, SurrogateToken } from "./surrogate.ts";

/**
 * Loss: from log-probabilities and advantages to one number and its derivative with respect to every token's
 * log-probability and entropy. Arrays in, arrays out: it does not know what computes the log-probabilities.
 * A surrogate is a file here, a member of the schema and a line of `surrogateTerm`.
 */

const common = {
  importance: importanceSchema.prefault({ type: "truncated" }),
  /** Weight of the KL term to the weights that training began with, per nat; 0 leaves it out. */
  klCoefficient: z.number().min(0).max(10).default(0),
  /** Reward for entropy, per nat. */
  entropyBonus: z.number().min(0).max(10).default(0),
  aggregation: z.enum(AGGREGATIONS).default("token-mean"),
};

export const lossSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("reinforce"), ...common }),
  z.strictObject({
    type: z.literal("ppo-clip"),
    clipLow: z.number().min(0).max(1).default(0.2),
    clipHigh: z.number().min(0).max(10).default(0.28),
    ...common,
  }),
]);
export type LossConfig = z.infer<typeof lossSchema>;

function surrogateTerm(token: SurrogateToken, config: LossConfig): SurrogateTerm {
  return config.type === "reinforce" ? reinforceTerm(token, config) : ppoClipTerm(token, config);
}

/** Means over action tokens; explained in docs/METRICS.md. */
export interface LossMetrics {
  readonly loss: number;
  readonly clip_low_fraction: number;
  readonly clip_high_fraction: number;
  readonly kl_reference: number;
}

export interface LossResult {
  readonly loss: number;
  /** One per row, [T]; 0 where the mask is 0. */
  readonly dLogprobs: readonly Float32Array[];
  /** As dLogprobs, where there is an entropy bonus. */
  readonly dEntropy?: readonly Float32Array[];
  readonly metrics: LossMetrics;
}

/**
 * The loss of a batch, to be minimised, and how it pulls on every token.
 * @throws FulgurError ERR_SHAPE when an array of a row has not the length of its mask, ERR_CONFIG when there is a KL
 * term and a row has no reference logprobs
 */
export function computeLoss(rows: readonly LossRow[], config: LossConfig): LossResult {
  for (const [at, row] of rows.entries()) checkRow(row, at, config);
  const weights = tokenWeights(rows, config.aggregation);
  let loss = 0;
  let tokens = 0;
  let klReference = 0;
  const clipped = { low: 0, high: 0 };
  const dLogprobs = rows.map((row, at) => {
    const weight = weights[at] ?? 0;
    const d_T = new Float32Array(row.lossMask.length);
    for (let t = 0; t < d_T.length; t += 1) {
      if (row.lossMask[t] !== 1) continue;
      tokens += 1;
      const policyLogprob = row.policyLogprobs[t] ?? 0;
      const term = surrogateTerm(
        {
          policyLogprob,
          proximalLogprob: (row.proximalLogprobs ?? row.policyLogprobs)[t] ?? 0,
          behaviourLogprob: row.behaviourLogprobs[t] ?? 0,
          advantage: row.advantages[t] ?? 0,
        },
        config,
      );
      if (term.clipped !== undefined) clipped[term.clipped] += 1;
      const divergence =
        row.referenceLogprobs === undefined ? { kl: 0, dLogprob: 0 } : k3(policyLogprob, row.referenceLogprobs[t] ?? 0);
      klReference += divergence.kl;
      const { klCoefficient, entropyBonus } = config;
      loss += weight * (term.loss + klCoefficient * divergence.kl - entropyBonus * (row.entropy?.[t] ?? 0));
      d_T[t] = weight * (term.dLogprob + klCoefficient * divergence.dLogprob);
    }
    return d_T;
  });
  const perToken = (sum: number): number => (tokens === 0 ? 0 : sum / tokens);
  return {
    loss,
    dLogprobs,
    ...(config.entropyBonus === 0 ? {} : { dEntropy: entropyPull(rows, weights, config.entropyBonus) }),
    metrics: {
      loss,
      clip_low_fraction: perToken(clipped.low),
      clip_high_fraction: perToken(clipped.high),
      kl_reference: perToken(klReference),
    },
  };
}

/** A row's entropies enter the loss linearly, so that their derivatives need no scores. */
function entropyPull(rows: readonly LossRow[], weights: Float64Array, bonus: number): Float32Array[] {
  return rows.map((row, at) => Float32Array.from(row.lossMask, (bit) => (bit === 1 ? -bonus * (weights[at] ?? 0) : 0)));
}

function checkRow(row: LossRow, at: number, config: LossConfig): void {
  const { lossMask, advantages, behaviourLogprobs, policyLogprobs, proximalLogprobs, referenceLogprobs, entropy } = row;
  const arrays = { advantages, behaviourLogprobs, policyLogprobs, proximalLogprobs, referenceLogprobs, entropy };
  for (const [name, values] of Object.entries(arrays)) {
    if (values !== undefined && values.length !== lossMask.length) {
      throw new FulgurError(
        "ERR_SHAPE",
        `row ${at} has ${lossMask.length} tokens and ${values.length} ${name}; both must be of one length`,
      );
    }
  }
  if (config.klCoefficient > 0 && referenceLogprobs === undefined) {
    throw new FulgurError(
      "ERR_CONFIG",
      `row ${at} has no reference logprobs, which the KL term (klCoefficient ${config.klCoefficient}) is measured from`,
    );
  }
}
