/** What the benchmark asks of the two trainers, each a process of its own: JSON, a line each way. */

import * as z from "zod";
import type { BatchRollout, SequenceRow } from "./batch.ts";

/** The first line. */
export interface UpdateSetup {
  readonly model: string;
  readonly method: "full" | "lora";
  /** Where our adapter's start is written, for TRL to start from the same. */
  readonly adapter: string;
  /** Weight of the KL term to the start; 0 needs no reference. */
  readonly klCoefficient: number;
  readonly learningRate: number;
  readonly threads: number;
}

/** Ours gets rollouts and joins their calls itself. */
export interface OurSetup extends UpdateSetup {
  readonly rollouts: readonly BatchRollout[];
}

/** TRL gets rows. */
export interface TrlSetup extends UpdateSetup {
  readonly rows: readonly SequenceRow[];
  /** Rows of a group. */
  readonly group: number;
  /** Rows of one pass. */
  readonly passRows: number;
  /** Default: the CPU, in float32. */
  readonly device?: "cpu" | "cuda";
  readonly precision?: "fp32" | "bf16";
}

const updateSchema = z.object({ ms: z.number(), gradNorm: z.number() });

/** Answer to `go`: one whole update. */
export const trlUpdateSchema = updateSchema;
export type TrlUpdate = z.infer<typeof trlUpdateSchema>;

export const ourUpdateSchema = z.object({
  ...updateSchema.shape,
  /** Within it: scoring by the reference; forward and backward; clipping and AdamW. */
  scoreMs: z.number(),
  backwardMs: z.number(),
  stepMs: z.number(),
  /** Parts of the threads' time: inside ONNX Runtime, and busy outside it; the rest is waiting for each other. */
  runtime: z.number(),
  typescript: z.number(),
});
export type OurUpdate = z.infer<typeof ourUpdateSchema>;

/** Answer to the first line. */
export const readySchema = z.object({
  version: z.string(),
  rows: z.number(),
  tokens: z.number(),
  /** With padding: what the model computes. */
  paddedTokens: z.number(),
});
export type Ready = z.infer<typeof readySchema>;
