/**
 * What the rest of the trainer may know of an engine: a policy that can be scored and pulled.
 * An engine knows tokens and tensors; rewards, advantages and algorithms are above it and reach it
 * only as cotangents. Shapes: B samples, T tokens of one sample.
 */

import type { Architecture } from "../model/architecture.ts";

/** One training row. */
export interface Sample {
  /** Token ids, [T], T ≥ 1. */
  readonly tokens: Int32Array;
  /** [T]; 1 = token t is a target that is trained on (t ≥ 1, since token 0 has no prediction). */
  readonly lossMask: Uint8Array;
}

/** Per-token scores under the current weights, [T] each; 0 where the loss mask is 0. */
export interface TokenScores {
  /** Entry t = log p(tokens[t] | tokens[<t]) in nats, of the temperature-scaled distribution. */
  readonly logprobs: Float32Array;
  /** Entry t = entropy in nats of the distribution that token t was drawn from. */
  readonly entropy: Float32Array;
  /** Entry t = the critic's V(tokens[<t]), what is expected before token t is drawn; only with a value head. */
  readonly values?: Float32Array;
}

/** How a scalar loss L pulls on the scores of one sample, [T] each; entries where the mask is 0 are ignored. */
export interface Cotangent {
  /** ∂L/∂logprobs[t]. */
  readonly dLogprobs: Float32Array;
  /** ∂L/∂entropy[t]; absent means 0. */
  readonly dEntropy?: Float32Array;
  /** ∂L/∂values[t]; absent means 0. Only for an engine with a value head. */
  readonly dValues?: Float32Array;
}

/** What may change from one optimizer step to the next; the optimizer's constants are engine options. */
export interface StepOptions {
  readonly learningRate: number;
  /** The global gradient norm is scaled down to this; Infinity leaves it alone. */
  readonly maxGradNorm: number;
}

/** What happened in one optimizer step. */
export interface StepReport {
  /** Global L2 norm of the accumulated gradient before clipping. */
  readonly gradNorm: number;
}

/** Facts about a running engine that do not change. */
export interface EngineInfo {
  /** `onnx` or `torch`. */
  readonly name: string;
  readonly precision: "fp32" | "bf16";
  readonly method: "lora" | "full";
  /** Whether it has a critic: scores then carry values, and checkpoints its weights. */
  readonly valueHead: boolean;
  readonly architecture: Architecture;
  readonly parameters: { readonly total: number; readonly trained: number };
}

/**
 * A policy that can be scored, pulled, stepped and saved. Calls are serial: an engine finishes one
 * before it begins the next, in the order they were made.
 */
export interface Engine {
  readonly info: EngineInfo;

  /**
   * Scores samples under the current weights.
   * @returns one entry per sample, in order
   * @throws FulgurError ERR_SHAPE for an empty sample, a mask of another length, or a token outside the vocabulary
   */
  score(samples: readonly Sample[]): Promise<TokenScores[]>;

  /**
   * Adds Σ_t dLogprobs[t]·∇logprob_t + dEntropy[t]·∇entropy_t + dValues[t]·∇value_t of every sample to the
   * accumulated gradient.
   * @returns the scores of the forward pass that the gradient was taken at
   * @throws FulgurError ERR_SHAPE as `score` does, and where cotangents do not match the samples; ERR_CONFIG for values
   * to be pulled where there is no value head
   */
  backward(samples: readonly Sample[], cotangents: readonly Cotangent[]): Promise<TokenScores[]>;

  /** Clips the accumulated gradient, takes one optimizer step against it (descent) and zeroes it. */
  step(options: StepOptions): Promise<StepReport>;

  /** Writes trained weights, optimizer state and rng so that `load` resumes bit for bit. Whole or not at all. */
  save(dir: string): Promise<void>;

  /**
   * Resumes from what `save` wrote.
   * @throws FulgurError ERR_CHECKPOINT when it is torn, corrupt, or of another model or method
   */
  load(dir: string): Promise<void>;

  /** Writes a PEFT adapter folder, the policy's alone: no value head. @throws FulgurError ERR_CONFIG when the method is `full` */
  exportAdapter(dir: string): Promise<void>;

  /** Writes a Hugging Face model folder, without a value head; with LoRA, the adapter is merged into it. */
  exportWeights(dir: string): Promise<void>;

  /** Ends the engine's threads; calls after it fail. */
  close(): Promise<void>;
}
