import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { AGGREGATIONS, tokenWeights } from "./aggregate.ts";
import { cispoTerm } from "./cispo.ts";
import { customTerm, type TokenLoss } from "./custom.ts";
import { dpoLoss } from "./dpo.ts";
import { dualClipTerm } from "./dual-clip.ts";
import { gspoTerm } from "./gspo.ts";
import { importanceSchema } from "./importance.ts";
import { k3, KL_ESTIMATORS, klTerm } from "./kl.ts";
import type { LossRow } from "./loss-row.ts";
import { ppoClipTerm } from "./ppo-clip.ts";
import { reinforceTerm } from "./reinforce.ts";
import { maskSequences } from "./sequence-mask.ts";
import { sequenceMeans } from "./sequences.ts";
import { IMITATIONS, sftTerm } from "./sft.ts";
import type { SequenceToken, SurrogateTerm } from "./surrogate.ts";

/**
 * Loss: from log-probabilities and advantages to one number and its derivative with respect to every token's
 * log-probability and entropy. Arrays in, arrays out: it does not know what computes the log-probabilities.
 * A surrogate is a file here, a member of the schema and a line of `surrogateTerm`.
 */

const regularised = {
  /** Weight of the KL term to the weights that training began with, per nat; 0 leaves it out. */
  klCoefficient: z.number().min(0).max(10).default(0),
  klEstimator: z.enum(KL_ESTIMATORS).default("k3"),
  /** A term of the loss, or taken off the advantages before they are normalised (advantage/kl-penalty.ts). */
  klPlace: z.enum(["loss", "reward"]).default("loss"),
  /** Reward for entropy, per nat. */
  entropyBonus: z.number().min(0).max(10).default(0),
  aggregation: z.enum(AGGREGATIONS).default("token-mean"),
  /** What `sequence-sum` divides a sequence's sum by, in tokens: 1 leaves the sum, the longest answer bounds it. */
  responseTokens: z.number().min(1).max(1_000_000).default(1),
};

const common = { importance: importanceSchema.prefault({ type: "truncated" }), ...regularised };

const clip = (low: number, high: number) => ({
  clipLow: z.number().min(0).max(1).default(low),
  clipHigh: z.number().min(0).max(10).default(high),
});

export const lossSchema = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("reinforce"), ...common }),
  z.strictObject({ type: z.literal("ppo-clip"), ...clip(0.2, 0.28), ...common }),
  z.strictObject({
    type: z.literal("dual-clip"),
    ...clip(0.2, 0.2),
    bound: z.number().min(1).max(100).default(3),
    ...common,
  }),
  z.strictObject({ type: z.literal("gspo"), ...clip(3e-4, 4e-4), ...common }),
  z.strictObject({ type: z.literal("cispo"), ...clip(1, 4), ...common }),
  /** A user's own (user-algorithm.ts). */
  z.strictObject({
    type: z.literal("custom"),
    term: z.custom<TokenLoss>((value) => typeof value === "function", "wanted a function"),
    ...common,
  }),
  z.strictObject({ type: z.literal("sft"), imitate: z.enum(IMITATIONS).default("better"), ...regularised }),
  z.strictObject({
    type: z.literal("dpo"),
    /** DPO's β: its loss is that of a reward with this weight on the KL divergence to the start. */
    klCoefficient: z.number().min(1e-6).max(10).default(0.1),
  }),
]);
export type LossConfig = z.infer<typeof lossSchema>;

/** Whether a loss weighs samples by what they were drawn with; imitation and preference look at the tokens alone. */
export function needsBehaviour({ type }: LossConfig): boolean {
  return type !== "sft" && type !== "dpo";
}

type TokenLossConfig = Exclude<LossConfig, { readonly type: "dpo" }>;

function surrogateTerm(token: SequenceToken, config: TokenLossConfig): SurrogateTerm {
  switch (config.type) {
    case "reinforce":
      return reinforceTerm(token, config);
    case "ppo-clip":
      return ppoClipTerm(token, config);
    case "dual-clip":
      return dualClipTerm(token, config);
    case "gspo":
      return gspoTerm(token, config);
    case "cispo":
      return cispoTerm(token, config);
    case "custom":
      return customTerm(token, config);
    case "sft":
      return sftTerm(token, config);
  }
}

/** Means over action tokens; explained in docs/METRICS.md. */
export interface LossMetrics {
  readonly loss: number;
  readonly clip_low_fraction: number;
  readonly clip_high_fraction: number;
  readonly kl_reference: number;
  /** Only where sequences may be masked. */
  readonly masked_fraction?: number;
}

export interface LossResult {
  readonly loss: number;
  /** One per row, [T]; 0 where the mask is 0. */
  readonly dLogprobs: readonly Float32Array[];
  /** As dLogprobs, where there is an entropy bonus. */
  readonly dEntropy?: readonly Float32Array[];
  readonly metrics: LossMetrics;
}

/** Of the batch that an update's rows belong to. */
export interface LossOptions {
  /** Action tokens of the batch / its updates; absent means that the update is the batch. */
  readonly tokensPerUpdate?: number | undefined;
}

/**
 * The loss of an update's rows, to be minimised, and how it pulls on every token.
 * @throws FulgurError ERR_SHAPE when an array of a row has not the length of its mask, ERR_CONFIG when there is a KL
 * term and a row has no reference logprobs
 */
export function computeLoss(
  rows: readonly LossRow[],
  config: LossConfig,
  { tokensPerUpdate }: LossOptions = {},
): LossResult {
  for (const [at, row] of rows.entries()) checkRow(row, at, config);
  if (config.type === "dpo") return preferenceLoss(rows, config.klCoefficient);
  const importance = config.type === "sft" ? undefined : config.importance;
  const kept = importance?.type === "sequence-mask" ? maskSequences(rows, importance) : rows;
  const { klCoefficient, klEstimator, klPlace, entropyBonus, aggregation, responseTokens } = config;
  const klWeight = klPlace === "loss" ? klCoefficient : 0;
  const weights = tokenWeights(kept, { aggregation, responseTokens, tokensPerUpdate });
  let loss = 0;
  let tokens = 0;
  const clipped = { low: 0, high: 0 };
  const dLogprobs = kept.map((row, at) => {
    const weights_T = weights[at] ?? new Float64Array();
    const tokenAt = tokensOf(row, config);
    const d_T = new Float32Array(row.lossMask.length);
    for (let t = 0; t < d_T.length; t += 1) {
      if (row.lossMask[t] !== 1) continue;
      tokens += 1;
      const weight = weights_T[t] ?? 0;
      const token = tokenAt(t);
      const term = surrogateTerm(token, config);
      if (term.clipped !== undefined) clipped[term.clipped] += 1;
      const divergence =
        klWeight === 0
          ? { kl: 0, dLogprob: 0 }
          : klTerm(klEstimator, token.policyLogprob, row.referenceLogprobs?.[t] ?? 0);
      loss += weight * (term.loss + klWeight * divergence.kl - entropyBonus * (row.entropy?.[t] ?? 0));
      d_T[t] = weight * (term.dLogprob + klWeight * divergence.dLogprob);
    }
    return d_T;
  });
  const perToken = (sum: number): number => (tokens === 0 ? 0 : sum / tokens);
  return {
    loss,
    dLogprobs,
    ...(entropyBonus === 0 ? {} : { dEntropy: entropyPull(kept, weights, entropyBonus) }),
    metrics: {
      loss,
      clip_low_fraction: perToken(clipped.low),
      clip_high_fraction: perToken(clipped.high),
      kl_reference: klToReference(rows),
      ...(kept === rows ? {} : { masked_fraction: 1 - tokens / Math.max(1, countActionTokens(rows)) }),
    },
  };
}

/** A row's tokens as surrogates see them; means over sequences are taken only for those that look at them. */
function tokensOf(row: LossRow, config: TokenLossConfig): (t: number) => SequenceToken {
  const { policyLogprobs, behaviourLogprobs, advantages } = row;
  const isRatio = config.type !== "sft" && config.importance.type === "ratio";
  const proximalLogprobs = isRatio ? behaviourLogprobs : (row.proximalLogprobs ?? policyLogprobs);
  const means = (of: ArrayLike<number>, to: ArrayLike<number>): Float64Array | undefined =>
    config.type === "gspo" || config.type === "custom"
      ? sequenceMeans(row, (t) => (of[t] ?? 0) - (to[t] ?? 0))
      : undefined;
  const meanLogRatios = means(policyLogprobs, proximalLogprobs);
  const meanLogWeights = means(proximalLogprobs, behaviourLogprobs);
  return (t) => ({
    policyLogprob: policyLogprobs[t] ?? 0,
    proximalLogprob: proximalLogprobs[t] ?? 0,
    behaviourLogprob: behaviourLogprobs[t] ?? 0,
    advantage: advantages[t] ?? 0,
    meanLogRatio: meanLogRatios?.[t] ?? 0,
    meanLogWeight: meanLogWeights?.[t] ?? 0,
  });
}

function preferenceLoss(rows: readonly LossRow[], beta: number): LossResult {
  const { loss, dLogprobs } = dpoLoss(rows, { beta });
  const metrics = { loss, clip_low_fraction: 0, clip_high_fraction: 0, kl_reference: klToReference(rows) };
  return { loss, dLogprobs, metrics };
}

/** By k3 whatever the loss has, so that runs can be compared; 0 where no row has a reference. */
function klToReference(rows: readonly LossRow[]): number {
  let sum = 0;
  for (const { lossMask, policyLogprobs, referenceLogprobs } of rows) {
    if (referenceLogprobs === undefined) continue;
    for (let t = 0; t < lossMask.length; t += 1) {
      if (lossMask[t] === 1) sum += k3(policyLogprobs[t] ?? 0, referenceLogprobs[t] ?? 0).kl;
    }
  }
  return sum / Math.max(1, countActionTokens(rows));
}

function countActionTokens(rows: readonly LossRow[]): number {
  return rows.reduce((sum, row) => row.lossMask.reduce((tokens, bit) => tokens + bit, sum), 0);
}

/** Entropies enter the loss linearly, so that their derivatives need no scores. */
function entropyPull(rows: readonly LossRow[], weights: readonly Float64Array[], bonus: number): Float32Array[] {
  return rows.map((row, at) =>
    Float32Array.from(row.lossMask, (bit, t) => (bit === 1 ? -bonus * (weights[at]?.[t] ?? 0) : 0)),
  );
}

function checkRow(row: LossRow, at: number, config: LossConfig): void {
  const { lossMask, advantages, behaviourLogprobs, policyLogprobs, proximalLogprobs, referenceLogprobs } = row;
  const { entropy, sequenceOfToken } = row;
  const scores = { behaviourLogprobs, policyLogprobs, proximalLogprobs, referenceLogprobs, entropy };
  for (const [name, values] of Object.entries({ advantages, ...scores, sequenceOfToken })) {
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
