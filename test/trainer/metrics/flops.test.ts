import { describe, expect, it } from "vitest";
import { parseArchitecture } from "../../../trainer/model/architecture.ts";
import { forwardFlops, trainFlops } from "../../../trainer/metrics/flops.ts";

/** Width 8, two query heads and one of keys of size 4, feed-forward 16, 10 tokens, 3 layers. */
const architecture = parseArchitecture({
  model_type: "llama",
  hidden_size: 8,
  intermediate_size: 16,
  num_hidden_layers: 3,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  vocab_size: 10,
});
const row = { tokens: Int32Array.of(1, 2, 3, 4), lossMask: Uint8Array.of(0, 0, 1, 1) };

describe("the operations of a row of four tokens, two of them scored", () => {
  // Weights of a layer: q 64, k and v 32 each, o 64, feed-forward 3 · 128. Pairs of tokens: 1 + 2 + 3 + 4.
  const layers = 2 * 4 * 3 * (64 + 32 + 32 + 64 + 384);
  const head = 2 * 2 * 80;
  const attention = 4 * 3 * 8 * 10;

  it("count each weight twice a token forward, and three times that with the backward pass of all weights", () => {
    const full = { architecture, method: "full", parameters: { total: 2000, trained: 2000 } } as const;
    expect(forwardFlops([row], full)).toBe(layers + head + attention);
    expect(trainFlops([row], full)).toBe(3 * (layers + head + attention));
    expect(trainFlops([row, row], full)).toBe(2 * trainFlops([row], full));
  });

  it("take the backward pass of frozen weights for its inputs alone", () => {
    const lora = { architecture, method: "lora", parameters: { total: 2000, trained: 50 } } as const;
    const adapter = 2 * 4 * 50;
    expect(forwardFlops([row], lora)).toBe(layers + head + attention + adapter);
    expect(trainFlops([row], lora)).toBe(2 * (layers + head) + 3 * (attention + adapter));
  });
});

it("is 6·N a token where the weights are many and the row is short, as the literature has it", () => {
  // GPT-2-sized: attention of 128 tokens and the scored half of the head change little.
  const large = parseArchitecture({
    model_type: "llama",
    hidden_size: 768,
    intermediate_size: 3072,
    num_hidden_layers: 12,
    num_attention_heads: 12,
    vocab_size: 100,
  });
  const weights = 12 * (4 * 768 * 768 + 3 * 768 * 3072);
  const info = { architecture: large, method: "full", parameters: { total: weights, trained: weights } } as const;
  const flops = trainFlops([{ tokens: new Int32Array(128), lossMask: new Uint8Array(128).fill(1) }], info);
  expect(flops / (6 * weights * 128)).toBeCloseTo(1, 1);
});
