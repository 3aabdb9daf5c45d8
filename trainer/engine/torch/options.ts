/** What the torch engine can be asked for: what the onnx engine can, and what a GPU wants. */

import * as z from "zod";
import { adamwSchema, fullSchema, loraSchema } from "../options.ts";

const torchLoraSchema = z.strictObject({
  ...loraSchema.shape,
  /** Part of the adapter's inputs that a backward pass leaves out; scores are always without. */
  dropout: z.number().min(0).lt(1).default(0),
});

/** An address as `host:port`, or `[host]:port` where the host is an IPv6 address. */
export const rendezvousSchema = z
  .string()
  .regex(/^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}$/, "wanted HOST:PORT, such as 10.0.0.1:29500");

/** Schema of the options of the torch engine; see each field for its default and unit. */
export const torchEngineOptionsSchema = z.strictObject({
  /** Hugging Face folder: config.json and safetensors. */
  modelDir: z.string().min(1),
  method: z.discriminatedUnion("type", [torchLoraSchema, fullSchema]).prefault({ type: "lora" }),
  optimizer: adamwSchema.prefault({ type: "adamw" }),
  /** A critic on the same trunk (value-head.ts): scores carry values, whose cotangents are taken. */
  valueHead: z.boolean().default(false),
  /** Logits are divided by it: the temperature that the samples were drawn at. */
  temperature: z.number().positive().default(1),
  /** `auto` is a GPU where PyTorch finds one. */
  device: z.enum(["auto", "cpu", "cuda"]).default("auto"),
  /** Devices that share the weights and the batch, a process each (FSDP2); on the CPU so many processes. */
  devices: z.int().min(1).max(64).default(1),
  /** Machines that do so together, each with `devices`; the others run `fulgur join`. */
  nodes: z.int().min(1).max(64).default(1),
  /** With several machines: the address of this one at which their processes find each other. */
  rendezvous: rendezvousSchema.optional(),
  /**
   * What matrices are multiplied in; trained weights, gradients, moments and scores are float32 in both.
   * Default: bf16 on a GPU, fp32 on the CPU.
   */
  precision: z.enum(["fp32", "bf16"]).optional(),
  /** Computes activations again in the backward pass: a third more work, and memory for one layer's alone. */
  gradientCheckpointing: z.boolean().default(false),
  /** CPU threads in all. */
  threads: z.int().min(1).max(256).default(1),
  /** Padded tokens that one pass may hold; bounds memory. Default: 1536 on the CPU, 16384 on a GPU. */
  maxTokensPerMicrobatch: z.int().min(1).optional(),
  /** Interpreter that has torch, transformers and peft. Default: FULGUR_PYTHON, `.venv/bin/python`, `python3`. */
  python: z.string().min(1).optional(),
});

/** Options of `createTorchEngine`, before defaults. */
export type TorchEngineOptions = z.input<typeof torchEngineOptionsSchema>;
/** Options of the torch engine with defaults applied. */
export type TorchEngineConfig = z.infer<typeof torchEngineOptionsSchema>;
