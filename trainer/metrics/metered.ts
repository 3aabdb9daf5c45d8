import type { InferenceClient } from "#shared/inference-client.ts";
import type { Engine } from "../engine/contract.ts";
import { forwardFlops, trainFlops } from "./flops.ts";
import type { StepMeter } from "./step-meter.ts";

/** The part of an engine that learning uses, its time counted by phase, and what the model needed. */
export function meteredEngine(
  engine: Pick<Engine, "info" | "score" | "backward" | "step">,
  meter: StepMeter,
): Pick<Engine, "score" | "backward" | "step"> {
  const { info } = engine;
  return {
    score: (samples) => {
      meter.addFlops(forwardFlops(samples, info));
      return meter.time("score", () => engine.score(samples));
    },
    backward: (samples, cotangents) => {
      meter.addFlops(trainFlops(samples, info));
      return meter.time("backward", () => engine.backward(samples, cotangents));
    },
    step: (options) => meter.time("optimizer", () => engine.step(options)),
  };
}

/** The frozen reference of a KL term. */
export function meteredReference(engine: Pick<Engine, "info" | "score">, meter: StepMeter): Pick<Engine, "score"> {
  return {
    score: (samples) => {
      meter.addFlops(forwardFlops(samples, engine.info));
      return meter.time("reference", () => engine.score(samples));
    },
  };
}

/** Inference, with the time counted in which a version is loaded and proven. */
export function meteredInference(inference: InferenceClient, meter: StepMeter): InferenceClient {
  return {
    load: (name, folder) => meter.time("load", () => inference.load(name, folder)),
    prove: (name) => meter.time("load", () => inference.prove(name)),
    unload: (name) => inference.unload(name),
  };
}
