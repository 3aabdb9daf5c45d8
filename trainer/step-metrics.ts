import type { Batch } from "./batch/claim.ts";
import type { LearnReport } from "./learn.ts";
import type { RolloutRecord } from "./records.ts";
import type { LoopState } from "./release/checkpoint.ts";

export interface StepFacts {
  readonly report: LearnReport;
  readonly watchFirstTool: string;
  readonly waitSeconds: number;
  readonly stepSeconds: number;
  readonly learningRate: number;
}

/** A step's metrics by the names of docs/METRICS.md. Means of outcomes are over all that was claimed, flat groups too. */
export function stepMetrics(batch: Batch, facts: StepFacts): Record<string, number> {
  const { report, watchFirstTool, waitSeconds, stepSeconds, learningRate } = facts;
  const { seconds: trainSeconds, tokens, action_tokens, rows, ...learned } = report;
  const training = batch.groups.flatMap((group) => group.rollouts);
  const { claimed } = batch;
  const decode = decodeTime(claimed);
  const calls = claimed.flatMap((record) => record.calls);
  const responses = calls.map((call) => call.responseTokenIds?.length ?? 0);
  const prompts = calls.map((call) => call.promptTokenIds?.length ?? 0);
  return {
    reward_mean: mean(claimed.map((record) => record.reward ?? 0)),
    first_tool_rate: mean(claimed.map((record) => (record.outcome?.tools[0] === watchFirstTool ? 1 : 0))),
    correct_rate: mean(claimed.map((record) => record.outcome?.correctness ?? 0)),
    format_rate: mean(claimed.map((record) => record.outcome?.format ?? 0)),
    advantage_spread: mean(batch.groups.map((group) => group.spread)),
    zero_spread_fraction: batch.claimedGroups === 0 ? 0 : batch.flatGroups / batch.claimedGroups,
    groups: batch.groups.length,
    rollouts: training.length,
    rows,
    tokens,
    action_tokens,
    staleness_mean: mean(training.map((each) => each.staleness)),
    staleness_max: Math.max(0, ...training.map((each) => each.staleness)),
    dropped_stale: batch.stale,
    turns_mean: mean(claimed.map((record) => record.calls.length)),
    prompt_tokens_mean: mean(prompts),
    response_tokens_mean: mean(responses),
    merge_failures: sum(training.map((each) => sum(Object.values(each.trajectory.breaks)))),
    calls_skipped: sum(training.map((each) => sum(Object.values(each.trajectory.skipped)))),
    ...learned,
    learning_rate: learningRate,
    tokens_per_s_train: trainSeconds === 0 ? 0 : tokens / trainSeconds,
    tokens_per_s_decode: decode.seconds === 0 ? 0 : decode.tokens / decode.seconds,
    seconds_wait: waitSeconds,
    seconds_train: trainSeconds,
    seconds_step: stepSeconds,
  };
}

/** Tokens that inference sampled for some rollouts, and for how long at least one of their calls was under way. */
export function decodeTime(records: readonly RolloutRecord[]): { tokens: number; seconds: number } {
  const calls = records.flatMap((record) => record.calls).toSorted((a, b) => a.startedAt - b.startedAt);
  let busyMs = 0;
  let until = -Infinity;
  for (const { startedAt, latencyMs } of calls) {
    const end = startedAt + latencyMs;
    busyMs += Math.max(0, end - Math.max(until, startedAt));
    until = Math.max(until, end);
  }
  return { tokens: sum(calls.map((call) => call.responseTokenIds?.length ?? 0)), seconds: busyMs / 1000 };
}

/** Adds a batch's rewards to the versions that sampled them, by each rollout's oldest call. */
export function sampledRewards(rewards: LoopState["rewards"], claimed: readonly RolloutRecord[]): LoopState["rewards"] {
  const sums = new Map(rewards.map(({ version, ...rest }) => [version, rest]));
  for (const { reward, calls } of claimed) {
    const versions = calls.flatMap((call) => (call.policyVersion === null ? [] : [call.policyVersion]));
    if (reward === null || versions.length === 0) continue;
    const oldest = Math.min(...versions);
    const { sum: total, count } = sums.get(oldest) ?? { sum: 0, count: 0 };
    sums.set(oldest, { sum: total + reward, count: count + 1 });
  }
  return [...sums].map(([version, rest]) => ({ version, ...rest })).toSorted((a, b) => a.version - b.version);
}

/** The version whose rollouts and those of its two neighbours earned most on average; undefined where none has any. */
export function bestVersion(rewards: LoopState["rewards"]): number | undefined {
  let best: { version: number; mean: number } | undefined;
  for (const [at, { version }] of rewards.entries()) {
    const near = rewards.slice(Math.max(0, at - 1), at + 2);
    const average = sum(near.map((each) => each.sum)) / Math.max(1, sum(near.map((each) => each.count)));
    // On a tie the later: it has been trained for longer.
    if (best === undefined || average >= best.mean) best = { version, mean: average };
  }
  return best?.version;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : sum(values) / values.length;
}
