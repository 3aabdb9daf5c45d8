import { expect, it } from "vitest";
import type { Engine } from "../../../trainer/engine/contract.ts";
import { forwardFlops, trainFlops } from "../../../trainer/metrics/flops.ts";
import { meteredEngine, meteredInference, meteredReference } from "../../../trainer/metrics/metered.ts";
import { StepMeter } from "../../../trainer/metrics/step-meter.ts";
import { parseArchitecture } from "../../../trainer/model/architecture.ts";

const info: Engine["info"] = {
  name: "slow",
  precision: "fp32",
  method: "lora",
  valueHead: false,
  parameters: { total: 100, trained: 10 },
  architecture: parseArchitecture({
    model_type: "llama",
    hidden_size: 4,
    intermediate_size: 8,
    num_hidden_layers: 1,
    num_attention_heads: 1,
    vocab_size: 5,
  }),
};
const samples = [{ tokens: Int32Array.of(1, 2, 3), lossMask: Uint8Array.of(0, 1, 1) }];
const scores = [{ logprobs: new Float32Array(3), entropy: new Float32Array(3) }];
const cotangents = [{ dLogprobs: new Float32Array(3) }];

it("counts each call of an engine under its phase, with the operations that it needs, and passes it on", async () => {
  let now = 0;
  const meter = new StepMeter(() => now);
  const taking =
    <T>(ms: number, result: T) =>
    async () => {
      now += ms;
      return result;
    };
  const engine = {
    info,
    score: taking(10, scores),
    backward: taking(20, scores),
    step: taking(5, { gradNorm: 2 }),
  };
  const metered = meteredEngine(engine, meter);
  expect(await metered.score(samples)).toBe(scores);
  expect(await metered.backward(samples, cotangents)).toBe(scores);
  expect(await metered.step({ learningRate: 1, maxGradNorm: 1 })).toEqual({ gradNorm: 2 });
  expect(await meteredReference({ info, score: taking(7, scores) }, meter).score(samples)).toBe(scores);
  expect(meter.seconds).toEqual({ score: 0.01, backward: 0.02, optimizer: 0.005, reference: 0.007 });
  expect(meter.flops).toBe(2 * forwardFlops(samples, info) + trainFlops(samples, info));
  expect(forwardFlops(samples, info)).toBeGreaterThan(0);
});

it("counts loading and proving a version as one phase", async () => {
  let now = 0;
  const meter = new StepMeter(() => now);
  const asked: unknown[] = [];
  const take =
    (what: string, ms: number) =>
    async (...args: readonly string[]) => {
      asked.push([what, ...args]);
      now += ms;
    };
  const inference = meteredInference(
    { load: take("load", 30), prove: take("prove", 12), unload: take("unload", 99) },
    meter,
  );
  await inference.load("p@1", "/versions/1");
  await inference.prove("p@1");
  await inference.unload("p@0");
  expect(asked).toEqual([
    ["load", "p@1", "/versions/1"],
    ["prove", "p@1"],
    ["unload", "p@0"],
  ]);
  expect(Object.keys(meter.seconds)).toEqual(["load"]);
  expect(meter.seconds.load).toBeCloseTo(0.042, 12);
});
