/** What an engine can be asked for; the trainer's configuration holds these under `engine`. */

import * as z from "zod";

/** Linear layers that LoRA can be put on. */
export const LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"] as const;

export const loraSchema = z.strictObject({
  type: z.literal("lora"),
  /** Columns of A and rows of B. */
  rank: z.int().min(1).max(512).default(16),
  /** The adapter's output is multiplied by alpha / rank. */
  alpha: z.number().positive().default(32),
  targets: z.union([z.literal("all-linear"), z.array(z.enum(LINEAR_LAYERS)).min(1)]).default("all-linear"),
  /** Of A's random start; B starts at zero. */
  seed: z.int().nonnegative().default(0),
  /** A PEFT adapter folder to go on from, instead of a fresh adapter. */
  adapterDir: z.string().min(1).optional(),
});
export const fullSchema = z.strictObject({ type: z.literal("full") });

export const adamwSchema = z.strictObject({
  type: z.literal("adamw"),
  beta1: z.number().min(0).lt(1).default(0.9),
  beta2: z.number().min(0).lt(1).default(0.999),
  epsilon: z.number().positive().default(1e-8),
  /** Decoupled; on matrices only, not on gains and biases. */
  weightDecay: z.number().min(0).default(0),
});
const muonSchema = z.strictObject({
  ...adamwSchema.shape,
  /** Muon for the matrices of the layers; AdamW with the other fields for embeddings, head, gains and biases. */
  type: z.literal("muon"),
  momentum: z.number().min(0).lt(1).default(0.95),
  /** AdamW's learning rate as a fraction of the step's, which is Muon's. */
  adamwRate: z.number().positive().default(0.15),
});

/** Schema of the options of the onnx engine; see each field for its default and unit. */
export const onnxEngineOptionsSchema = z.strictObject({
  /** Hugging Face folder: config.json and safetensors. */
  modelDir: z.string().min(1),
  method: z.discriminatedUnion("type", [loraSchema, fullSchema]).prefault({ type: "lora" }),
  optimizer: z.discriminatedUnion("type", [adamwSchema, muonSchema]).prefault({ type: "adamw" }),
  /** A critic on the same trunk (value-head.ts): scores carry values, whose cotangents are taken. */
  valueHead: z.boolean().default(false),
  /** Logits are divided by it: the temperature that the samples were drawn at. */
  temperature: z.number().positive().default(1),
  /** CPU threads in all. */
  threads: z.int().min(1).max(256).default(1),
  /**
   * Copies of the graph that share the batch, one worker thread each. More replicas scale better than more
   * threads in one; models whose copies would not fit in memory want 1. Default: one for each thread.
   */
  replicas: z.int().min(1).max(64).optional(),
  /**
   * Whether the frozen weights under LoRA are read where they lie, by all sessions, and not laid out for the products
   * that they are in: slower, and much smaller. Default: beyond 1 GiB of them.
   */
  frozenAsInputs: z.boolean().optional(),
  /**
   * What activations of all replicas may take in memory, about. Batches that would take more keep those of one layer at a
   * time, compute them again in the backward pass, and cut the head's logits into parts: long contexts, big vocabularies.
   */
  maxActivationBytes: z
    .int()
    .min(0)
    .default(6 * 2 ** 30),
  /** Padded tokens that one pass of the graph may hold; bounds memory, and about 1k keeps activations in cache. */
  maxTokensPerMicrobatch: z.int().min(1).default(1536),
});

/** Options of `createOnnxEngine`, before defaults. */
export type OnnxEngineOptions = z.input<typeof onnxEngineOptionsSchema>;
/** Options of the onnx engine with defaults applied. */
export type OnnxEngineConfig = z.infer<typeof onnxEngineOptionsSchema>;
/** How the weights are trained. */
export type Method = OnnxEngineConfig["method"];
/** How a gradient becomes a step. */
export type OptimizerConfig = OnnxEngineConfig["optimizer"];
