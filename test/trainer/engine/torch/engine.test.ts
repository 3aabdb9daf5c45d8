import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Engine } from "../../../../trainer/engine/contract.ts";
import { createTorchEngine } from "../../../../trainer/engine/torch/engine.ts";
import { engineContract } from "../../../contract/engine.ts";
import { findPython } from "../../../oracle/python.ts";
import { RecycledWorkers } from "./recycled.ts";

const modelOf = (family: string): string =>
  fileURLToPath(new URL(`../../../oracle/fixtures/engine/${family}`, import.meta.url));

const python = findPython();
const workers = new RecycledWorkers();
afterAll(() => workers.close());

describe.skipIf(python === null)("with PyTorch", () => {
  const make = (type: "lora" | "full"): Promise<Engine> =>
    createTorchEngine(
      {
        modelDir: modelOf("qwen3"),
        device: "cpu",
        method: type === "lora" ? { type, rank: 4 } : { type },
        ...(python === null ? {} : { python }),
      },
      workers.start,
    );
  // A process takes seconds to import PyTorch, and the first tests would pay for it.
  beforeAll(async () => {
    const opened = await Promise.all([make("full"), make("lora")]);
    await Promise.all(opened.map((engine) => engine.close()));
  }, 300_000);
  engineContract("torch", {
    make,
    // Matrix products of other heights are summed in other blocks.
    batchTolerance: 2e-6,
  });
});

test.runIf(python === null)("is not tested: no Python with torch, transformers and peft (PYTHON or .venv)", () => {
  expect(python).toBeNull();
});
