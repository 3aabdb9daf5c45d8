/**
 * Cuts samples into padded batches that a graph can run: rows of similar length together, only up to the
 * last target of each (what follows it cannot matter), at most so many padded tokens a batch.
 */

import { FulgurError } from "#shared/errors.ts";
import type { Cotangent, Sample, TokenScores } from "../contract.ts";
import { ATTENTION_BLOCKS } from "./decoder-graph.ts";

/** One padded batch, as the graph's inputs want it. */
export interface Microbatch {
  /** Rows B and columns T of `tokens`. */
  readonly batch: number;
  readonly time: number;
  /** [B, T], padded with token 0. */
  readonly tokens: BigInt64Array;
  /** [M] flat index b·T + t − 1 of the position that predicts each target. */
  readonly rows: BigInt64Array;
  /** [M] token ids. */
  readonly targets: BigInt64Array;
  /** [M]; zeros when only scoring. */
  readonly dLogprobs: Float32Array;
  /** [M]; null when no sample has a cotangent of its entropy. */
  readonly dEntropy: Float32Array | null;
  /** [M]; zeros when no sample has a cotangent of its values, and unused without a value head. */
  readonly dValues: Float32Array;
}

/** Scores of one batch's targets, [M] each. */
export interface MicrobatchScores {
  readonly logprobs: Float32Array;
  readonly entropy: Float32Array;
  /** Only with a value head. */
  readonly values?: Float32Array;
}

/** A batch and where its targets came from. */
export interface PlannedMicrobatch {
  readonly microbatch: Microbatch;
  /** [M] index of the sample of each target. */
  readonly sampleOf: Int32Array;
  /** [M] position of each target in its sample. */
  readonly positionOf: Int32Array;
}

/** Limits of a plan. */
export interface PlanOptions {
  readonly maxTokens: number;
  /** Work is cut into at least this many batches where there is enough of it. */
  readonly replicas: number;
}

/**
 * Checks samples against the vocabulary and their cotangents.
 * @throws FulgurError ERR_SHAPE naming the first sample that is wrong, and how
 */
export function checkSamples(
  samples: readonly Sample[],
  limits: { readonly vocab: number; readonly contextTokens: number; readonly valueHead?: boolean },
  cotangents?: readonly Cotangent[],
): void {
  const refuse = (i: number, what: string): never => {
    throw new FulgurError("ERR_SHAPE", `Sample ${i}: ${what}`);
  };
  if (cotangents !== undefined && cotangents.length !== samples.length) {
    throw new FulgurError(
      "ERR_SHAPE",
      `backward wants one cotangent a sample, got ${cotangents.length} for ${samples.length}.`,
    );
  }
  for (const [i, { tokens, lossMask }] of samples.entries()) {
    const length = tokens.length;
    if (length === 0) refuse(i, "it has no tokens.");
    if (length > limits.contextTokens)
      refuse(i, `${length} tokens exceed the model's context of ${limits.contextTokens}.`);
    if (lossMask.length !== length) refuse(i, `its loss mask has ${lossMask.length} entries for ${length} tokens.`);
    if (lossMask[0] !== 0)
      refuse(i, "its first token cannot be a target, since nothing comes before it; set lossMask[0] to 0.");
    for (const token of tokens) {
      if (token < 0 || token >= limits.vocab) refuse(i, `token ${token} is outside the vocabulary of ${limits.vocab}.`);
    }
    const cotangent = cotangents?.[i];
    if (cotangent === undefined) continue;
    for (const name of ["dLogprobs", "dEntropy", "dValues"] as const) {
      const entries = cotangent[name]?.length ?? length;
      if (entries !== length) refuse(i, `its ${name} have ${entries} entries for ${length} tokens.`);
    }
    if (cotangent.dValues !== undefined && !limits.valueHead) {
      throw new FulgurError(
        "ERR_CONFIG",
        `Sample ${i}: its values cannot be pulled, as this engine has no value head; open it with valueHead.`,
      );
    }
  }
}

/** Cuts samples into batches, longest first. Samples without a target take no part. */
export function planMicrobatches(
  samples: readonly Sample[],
  cotangents: readonly Cotangent[] | null,
  { maxTokens, replicas }: PlanOptions,
): PlannedMicrobatch[] {
  const lengths = samples.map(({ lossMask }) => lossMask.lastIndexOf(1));
  const order = [...lengths.keys()].filter((i) => (lengths[i] ?? 0) > 0);
  order.sort((a, b) => (lengths[b] ?? 0) - (lengths[a] ?? 0) || a - b);
  const sorted = order.map((i) => Math.max(lengths[i] ?? 0, ATTENTION_BLOCKS));
  const atMost = Math.min(order.length, Math.ceil(batchCount(sorted, maxTokens) / replicas) * replicas);
  // The smallest capacity that still needs no more batches makes them even: a last small one would leave a replica idle.
  let low = sorted[0] ?? 0;
  let high = Math.max(maxTokens, low);
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (batchCount(sorted, middle) <= atMost) high = middle;
    else low = middle + 1;
  }
  const batches: number[][] = [];
  for (let at = 0; at < order.length;) {
    const size = batchRows(sorted, at, low);
    batches.push(order.slice(at, at + size));
    at += size;
  }
  return batches.map((members) => pack(members, lengths, samples, cotangents));
}

/** Deals batches to replicas, in order to the least loaded; the same plan always gives the same deal. */
export function dealMicrobatches(plan: readonly PlannedMicrobatch[], replicas: number): PlannedMicrobatch[][] {
  const hands = Array.from({ length: replicas }, () => ({ load: 0, batches: [] as PlannedMicrobatch[] }));
  for (const planned of plan) {
    const lightest = hands.reduce((least, hand) => (hand.load < least.load ? hand : least));
    lightest.load += planned.microbatch.tokens.length;
    lightest.batches.push(planned);
  }
  return hands.map((hand) => hand.batches);
}

/** Scores of nothing yet, for each sample. */
export function emptyScores(samples: readonly Sample[], { valueHead = false } = {}): TokenScores[] {
  return samples.map(({ tokens }) => ({
    logprobs: new Float32Array(tokens.length),
    entropy: new Float32Array(tokens.length),
    ...(valueHead ? { values: new Float32Array(tokens.length) } : {}),
  }));
}

/** Puts a batch's scores, [M] each, where they belong. */
export function scatterScores(
  into: readonly TokenScores[],
  planned: PlannedMicrobatch,
  scores: MicrobatchScores,
): void {
  for (const [m, sample] of planned.sampleOf.entries()) {
    const position = planned.positionOf[m] ?? 0;
    const target = into[sample];
    if (target === undefined) continue;
    target.logprobs[position] = scores.logprobs[m] ?? NaN;
    target.entropy[position] = scores.entropy[m] ?? NaN;
    if (target.values !== undefined) target.values[position] = scores.values?.[m] ?? NaN;
  }
}

/** Rows that fit from `at` on; the first is the longest. */
function batchRows(sorted: readonly number[], at: number, capacity: number): number {
  return Math.min(sorted.length - at, Math.max(1, Math.floor(capacity / (sorted[at] ?? 1))));
}

function batchCount(sorted: readonly number[], capacity: number): number {
  let count = 0;
  for (let at = 0; at < sorted.length; at += batchRows(sorted, at, capacity)) count += 1;
  return count;
}

function pack(
  members: readonly number[],
  lengths: readonly number[],
  samples: readonly Sample[],
  cotangents: readonly Cotangent[] | null,
): PlannedMicrobatch {
  const batch = members.length;
  const time = Math.max(ATTENTION_BLOCKS, ...members.map((i) => lengths[i] ?? 0));
  const tokens = new BigInt64Array(batch * time);
  const rows: number[] = [];
  const targets: number[] = [];
  const sampleOf: number[] = [];
  const positionOf: number[] = [];
  const dLogprobs: number[] = [];
  const dEntropy: number[] = [];
  const dValues: number[] = [];
  let hasEntropy = false;
  for (const [b, i] of members.entries()) {
    const sample = samples[i];
    if (sample === undefined) continue;
    const length = lengths[i] ?? 0;
    const cotangent = cotangents?.[i];
    hasEntropy ||= cotangent?.dEntropy !== undefined;
    for (let t = 0; t < length; t++) tokens[b * time + t] = BigInt(sample.tokens[t] ?? 0);
    for (let t = 1; t <= length; t++) {
      if (sample.lossMask[t] !== 1) continue;
      rows.push(b * time + t - 1);
      targets.push(sample.tokens[t] ?? 0);
      sampleOf.push(i);
      positionOf.push(t);
      dLogprobs.push(cotangent?.dLogprobs[t] ?? 0);
      dEntropy.push(cotangent?.dEntropy?.[t] ?? 0);
      dValues.push(cotangent?.dValues?.[t] ?? 0);
    }
  }
  return {
    microbatch: {
      batch,
      time,
      tokens,
      rows: BigInt64Array.from(rows, (row) => BigInt(row)),
      targets: BigInt64Array.from(targets, (target) => BigInt(target)),
      dLogprobs: Float32Array.from(dLogprobs),
      dEntropy: hasEntropy ? Float32Array.from(dEntropy) : null,
      dValues: Float32Array.from(dValues),
    },
    sampleOf: Int32Array.from(sampleOf),
    positionOf: Int32Array.from(positionOf),
  };
}
