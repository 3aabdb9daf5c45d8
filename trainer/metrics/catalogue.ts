import type { Label } from "./key.ts";

/**
 * Every metric of a step. docs/METRICS.md explains each with the value that should worry; a test holds the two and what a
 * run really emits together.
 */
export interface MetricSpec {
  /** A line for Prometheus. */
  readonly help: string;
  /** It also has values apart for each of these; `only` means that it has no value of its own. */
  readonly labels?: readonly Label[];
  readonly only?: true;
  /** Measured after the store's record of the step was written. */
  readonly afterPublishing?: true;
}

export const METRICS = {
  reward_mean: { help: "Mean reward of the rollouts that were claimed", labels: ["task", "role"] },
  reward_std: { help: "Standard deviation of those rewards", labels: ["task", "role"] },
  first_tool_rate: { help: "Share of rollouts whose first tool call is the watched tool" },
  correct_rate: { help: "Mean correctness by the judge of the task" },
  format_rate: { help: "Share of results in the wanted form" },
  turns_mean: { help: "LLM calls per rollout" },
  prompt_tokens_mean: { help: "Prompt tokens of a call" },
  prompt_tokens_max: { help: "Prompt tokens of the longest" },
  response_tokens_mean: { help: "Sampled tokens of a call" },
  response_tokens_max: { help: "Sampled tokens of the longest" },
  truncated_fraction: { help: "Share of calls that were cut off at their token limit" },

  advantage_spread: { help: "Mean standard deviation of credit within a group" },
  zero_spread_fraction: { help: "Share of claimed groups whose rollouts all earned the same" },
  groups: { help: "Groups trained on" },
  rollouts: { help: "Rollouts trained on" },
  rollouts_claimed: { help: "Rollouts claimed, those without a spread too" },
  rows: { help: "Training rows" },
  tokens: { help: "Tokens of the rows" },
  action_tokens: { help: "Tokens that the loss is on" },
  merge_rate: { help: "Share of later calls that went on in the row of the calls before" },
  merge_failures: { help: "Calls that could not go on in the row of the calls before", labels: ["reason"] },
  calls_skipped: { help: "Calls that train nothing", labels: ["reason"] },
  batch_dropped: { help: "Rollouts of the batch that were dropped after they were claimed", labels: ["reason"] },
  run_failed: { help: "Train rollouts of the run so far that ended without a result", labels: ["reason"] },
  rollouts_open: { help: "Rollouts of the run that have neither trained nor been dropped" },

  replayed_groups: { help: "Groups of earlier batches that were trained on again" },
  replayed_rollouts: { help: "Their rollouts" },
  replayed_staleness_mean: { help: "Versions between the one that sampled these and the current one" },

  kl_behaviour: { help: "KL from the policy that sampled to the one that is trained, nats a token" },
  mismatch_kl: { help: "The same on samples of the current weights: what training and inference disagree by" },
  importance_weight_mean: { help: "Mean importance weight; its expectation is 1" },
  importance_weight_max: { help: "Largest importance weight, before it is cut off" },
  ess: { help: "Effective sample size of the weights, as a share" },
  staleness_mean: { help: "Versions between the one that sampled and the current one" },
  staleness_max: { help: "The most such versions" },
  staleness_rollouts: { help: "Rollouts trained on by such versions", labels: ["versions"], only: true },
  dropped_stale: { help: "Rollouts dropped for their age" },

  loss: { help: "Surrogate with its KL and entropy terms" },
  entropy: { help: "Entropy of the distributions that tokens were drawn from, nats a token" },
  grad_norm: { help: "Global gradient norm before it is scaled down" },
  clip_low_fraction: { help: "Share of tokens past the lower clip bound" },
  clip_high_fraction: { help: "Share of tokens past the upper clip bound" },
  masked_fraction: { help: "Share of action tokens left out by the sequence mask" },
  kl_reference: { help: "KL from the policy to the start of training, nats a token" },
  value_loss: { help: "Squared error of the critic, halved" },
  value_clip_fraction: { help: "Share of tokens whose value is past the clip range" },
  explained_variance: { help: "Share of the variance of the returns that the critic foretold" },
  learning_rate: { help: "Learning rate of the step" },

  tokens_per_s_train: { help: "Tokens of the rows per second of training" },
  tokens_per_s_decode: { help: "Sampled tokens per second in which a call was under way" },
  tflops: { help: "Operations that the model needed, in 10^12 per second of training" },
  mfu: { help: "Model FLOPs utilisation: tflops over the peak of the machine" },
  seconds_wait: { help: "Waiting for the batch" },
  seconds_train: { help: "The whole update: scoring, loss, backward, optimizer" },
  seconds_score: { help: "Scoring by the policy" },
  seconds_reference: { help: "Scoring by the frozen reference" },
  seconds_backward: { help: "Forward and backward passes" },
  seconds_optimizer: { help: "Optimizer steps" },
  seconds_checkpoint: { help: "Writing the checkpoint", afterPublishing: true },
  seconds_publish: { help: "From the checkpoint on disk to the new version routed", afterPublishing: true },
  seconds_load: { help: "Of that, inference loading and proving the version", afterPublishing: true },
  seconds_step: { help: "The whole step", afterPublishing: true },
} as const satisfies Record<string, MetricSpec>;

export type MetricName = keyof typeof METRICS;

/** Names that the store's record of a step lacks, or has too little of (`seconds_step`), until the step is over. */
export const AFTER_PUBLISHING = Object.entries<MetricSpec>(METRICS)
  .filter(([, spec]) => spec.afterPublishing === true)
  .map(([name]) => name);

/** A line about a metric; its own name for one that the catalogue lacks. */
export function helpOf(name: string): string {
  return Object.entries<MetricSpec>(METRICS).find(([each]) => each === name)?.[1].help ?? name;
}
