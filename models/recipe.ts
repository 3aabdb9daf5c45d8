/** What the built-in model is and how it is trained: numbers only. */

/** `config.json`: a plain Llama of 0.7 million weights, so that a rollout and a step cost milliseconds on a CPU. */
export function modelConfig(vocab: number): Record<string, unknown> {
  return {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    vocab_size: vocab,
    hidden_size: 128,
    intermediate_size: 256,
    num_hidden_layers: 4,
    num_attention_heads: 2,
    num_key_value_heads: 2,
    // Wide heads: a copied token's identity has to pass through one head's values.
    head_dim: 64,
    hidden_act: "silu",
    max_position_embeddings: 512,
    rms_norm_eps: 1e-5,
    rope_theta: 100000,
    tie_word_embeddings: true,
    attention_bias: false,
    mlp_bias: false,
    bos_token_id: null,
    eos_token_id: 2,
    pad_token_id: 0,
    initializer_range: 0.02,
    dtype: "float32",
    use_cache: true,
  };
}

/** `generation_config.json`: the plain distribution, which is what reinforcement learning samples from. */
export const GENERATION_CONFIG = {
  eos_token_id: 2,
  pad_token_id: 0,
  do_sample: true,
  temperature: 1,
  top_p: 1,
  top_k: 0,
} as const;

/** How it is trained; a run that was begun with another recipe is not resumed. */
export const RECIPE = {
  /** Traces in one step; a step of drills holds twice as many, which are half as long. */
  traces: 32,
  /** Tokens at the start that are drills only; they wake the copying heads. */
  drillTokens: 300_000,
  /** Share of steps after that which are drills. */
  drillShare: 0.1,
  peakLearningRate: 2e-3,
  /** Of the peak, at the very end of the cosine. */
  finalLearningRate: 0.05,
  /** Share of all tokens over which the rate rises. */
  warmup: 0.02,
  optimizer: { type: "adamw", beta2: 0.98, weightDecay: 0.01 },
  maxGradNorm: 1,
} as const;

/** Default budget. Copying is at 0.99 after about 1.5 million tokens; the rest is for the worst slot and the mix. */
export const DEFAULT_TOKENS = 4_000_000;

/**
 * Warm-up, then a cosine.
 * @param done share of the budget that was used, 0 to 1
 */
export function learningRateAt(done: number): number {
  const { peakLearningRate, finalLearningRate, warmup } = RECIPE;
  const rise = Math.min(1, 0.05 + done / warmup);
  const cosine = 0.5 * (1 + Math.cos(Math.PI * Math.min(1, done)));
  return peakLearningRate * rise * (finalLearningRate + (1 - finalLearningRate) * cosine);
}
