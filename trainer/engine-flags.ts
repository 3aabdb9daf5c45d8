import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { rendezvousSchema } from "./engine/torch/options.ts";

/** Flags that choose what trains and what inference computes in, and those that only the torch engine has a use for (docs/ENGINES.md). */

/** Fields of the trainer's configuration. */
export const engineFlags = {
  engine: z
    .enum(["onnx", "torch"])
    .default("onnx")
    .describe("what trains: onnx, embedded, on the CPU; or torch, PyTorch on GPUs or the CPU (docs/ENGINES.md)"),
  microbatchTokens: z
    .int()
    .min(1)
    .max(10_000_000)
    .optional()
    .describe("padded tokens of one pass; bounds memory (default: 1536, with torch on a GPU 16384)"),
  device: z
    .enum(["auto", "cpu", "cuda"])
    .optional()
    .describe("with --engine torch: where it runs (default: a GPU where there is one)"),
  devices: z
    .int()
    .min(1)
    .max(64)
    .optional()
    .describe("with --engine torch: GPUs, or processes on the CPU, that share weights and batch by FSDP2 (default: 1)"),
  nodes: z
    .int()
    .min(1)
    .max(64)
    .optional()
    .describe(
      "with --engine torch: machines that train together, each with --devices; the others run npx fulgur join (default: 1)",
    ),
  rendezvous: rendezvousSchema
    .optional()
    .describe("with --nodes: HOST:PORT of this machine at which the others find it (default: none)"),
  precision: z
    .enum(["fp32", "bf16"])
    .optional()
    .describe("with --engine torch: what matrices are multiplied in (default: bf16 on a GPU, fp32 on the CPU)"),
  gradientCheckpointing: z
    .union([z.boolean(), z.stringbool()])
    .optional()
    .describe(
      "with --engine torch: compute activations again in the backward pass, to need less memory (default: off)",
    ),
  loraDropout: z
    .number()
    .min(0)
    .max(0.9)
    .optional()
    .describe("with --engine torch: part of the adapter's inputs that a backward pass leaves out (default: 0)"),
  servePrecision: z
    .enum(["fp32", "bf16", "int8"])
    .default("fp32")
    .describe(
      "what inference computes in: int8 has the built-in server round weights; bf16 is for servers that run elsewhere; with either, all samples are scored and weighed by what rounding changed (docs/ENGINES.md)",
    ),
  python: z
    .string()
    .min(1)
    .optional()
    .describe("with --engine torch: the interpreter (default: FULGUR_PYTHON, .venv/bin/python, python3)"),
};
const flagsSchema = z.object(engineFlags);
export type EngineFlags = z.infer<typeof flagsSchema>;

const TORCH_ALONE = [
  "device",
  "devices",
  "nodes",
  "rendezvous",
  "precision",
  "gradientCheckpointing",
  "loraDropout",
  "python",
] as const;

/** @throws FulgurError ERR_CONFIG naming a flag that the chosen engine has no use for */
export function checkEngineFlags(flags: EngineFlags): void {
  if (flags.engine === "torch") return;
  const stray = TORCH_ALONE.find((name) => flags[name] !== undefined);
  if (stray === undefined) return;
  const flag = `--${stray.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  throw new FulgurError("ERR_CONFIG", `${flag}: the onnx engine has no such setting; give --engine torch beside it`);
}
