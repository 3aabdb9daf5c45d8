import { engineOptions, type EngineStart, type TrainerConfig } from "./config.ts";
import type { Engine } from "./engine/contract.ts";

/**
 * Opens the engine that the configuration names; the other one's runtime is not loaded.
 * @throws FulgurError as the engine does
 */
export async function openEngine(config: TrainerConfig, start: EngineStart): Promise<Engine> {
  const shared = engineOptions(config, start);
  if (config.engine === "onnx") {
    const { createOnnxEngine } = await import("./engine/onnx/engine.ts");
    return createOnnxEngine(shared);
  }
  const { createTorchEngine } = await import("./engine/torch/engine.ts");
  const { device, devices, nodes, rendezvous, precision, gradientCheckpointing, loraDropout: dropout, python } = config;
  const { method, optimizer: _, replicas: __, ...others } = shared;
  // A frozen reference needs neither gradients nor moments: this machine's devices hold it.
  const machines = start.isReference === true ? {} : { nodes, rendezvous };
  const given = { device, devices, ...machines, precision, gradientCheckpointing, python };
  return createTorchEngine({
    ...others,
    ...(method === undefined ? {} : { method: method.type === "lora" ? { ...method, dropout: dropout ?? 0 } : method }),
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
  });
}
