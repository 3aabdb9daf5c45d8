/** `node large-step.ts MODEL_DIR TOKENS TARGETS`: opens a model, takes two steps, scores once, and prints what it took as JSON. */

import { createOnnxEngine } from "../../trainer/engine/onnx/engine.ts";
import type { Sample } from "../../trainer/engine/contract.ts";

const [modelDir = "", tokens = "", targets = ""] = process.argv.slice(2);
const length = Number(tokens);

const peakBytes = (): number => process.resourceUsage().maxRSS * 1024;
async function seconds(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return (performance.now() - startedAt) / 1000;
}

const openedAt = performance.now();
const engine = await createOnnxEngine({
  modelDir,
  method: { type: "lora", rank: 16 },
  threads: 2,
  // A copy of the activations for each thread would not pay at this size.
  replicas: 1,
  maxTokensPerMicrobatch: length,
});
const open_s = (performance.now() - openedAt) / 1000;
const open_peak_bytes = peakBytes();

const { vocab } = engine.info.architecture;
const sample: Sample = {
  tokens: Int32Array.from({ length }, (_, i) => (i * 7919) % vocab),
  lossMask: Uint8Array.from({ length }, (_, i) => Number(i >= length - Number(targets))),
};
const step = async (): Promise<void> => {
  await engine.backward([sample], [{ dLogprobs: new Float32Array(length).fill(-1 / length) }]);
  await engine.step({ learningRate: 1e-4, maxGradNorm: 1 });
};
const first_step_s = await seconds(step);
const step_s = await seconds(step);
const score_s = await seconds(() => engine.score([sample]));
console.log(JSON.stringify({ open_s, open_peak_bytes, first_step_s, step_s, score_s, peak_bytes: peakBytes() }));
await engine.close();
