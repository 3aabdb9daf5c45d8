import type { Batch } from "./batch/claim.ts";
import type { Trajectory } from "./batch/trajectories.ts";
import type { LearnReport } from "./learn.ts";
import { labelledKey, type Label } from "./metrics/key.ts";
import type { Measured } from "./metrics/step-meter.ts";
import type { RolloutFates, RolloutRecord } from "./records.ts";
import type { LoopState } from "./release/checkpoint.ts";

export interface StepFacts {
  readonly report: LearnReport;
  readonly watchFirstTool: string;
  /** Seconds by phase and operations of this step, publishing not yet among them. */
  readonly measured: Measured;
  readonly stepSeconds: number;
  readonly learningRate: number;
  /** Whether there is a frozen reference to measure the KL divergence from. */
  readonly hasReference: boolean;
  readonly fates: RolloutFates;
  /** The machine's, in 10^12 operations per second. */
  readonly peakTflops: number | undefined;
}

/** Tasks of a batch that are told apart; with more, each would be seen once in a long while. */
const MAX_TASKS = 64;

/** A step's metrics by the names of docs/METRICS.md. Means of outcomes are over all that was claimed, flat groups too. */
export function stepMetrics(batch: Batch, facts: StepFacts): Record<string, number> {
  const { report, measured, stepSeconds, learningRate, hasReference, fates, peakTflops } = facts;
  const { seconds: trainSeconds, tokens, action_tokens, rows, kl_reference, ...learned } = report;
  const training = batch.groups.flatMap((group) => group.rollouts);
  const decode = decodeTime(batch.claimed);
  const tflops = measured.flops / 1e12 / trainSeconds;
  return {
    ...outcomes(batch.claimed, facts.watchFirstTool),
    advantage_spread: mean(batch.groups.map((group) => group.spread)),
    zero_spread_fraction: batch.claimedGroups === 0 ? 0 : batch.flatGroups / batch.claimedGroups,
    groups: batch.groups.length,
    rollouts: training.length,
    rollouts_claimed: batch.claimed.length,
    rows,
    tokens,
    action_tokens,
    ...reasons(
      "merge_failures",
      training.map((each) => each.trajectory.breaks),
    ),
    ...mergeRate(training.map((each) => each.trajectory)),
    ...reasons(
      "calls_skipped",
      training.map((each) => each.trajectory.skipped),
    ),
    ...reasons("batch_dropped", [fates.batchDropped]),
    ...reasons("run_failed", [fates.runFailed]),
    rollouts_open: fates.open,
    ...staleness(training.map((each) => each.staleness)),
    dropped_stale: batch.stale,
    ...learned,
    // Without a reference nothing was measured, and 0 would be a claim.
    ...(hasReference ? { kl_reference } : {}),
    learning_rate: learningRate,
    tokens_per_s_train: trainSeconds === 0 ? 0 : tokens / trainSeconds,
    tokens_per_s_decode: decode.seconds === 0 ? 0 : decode.tokens / decode.seconds,
    ...(trainSeconds === 0 ? {} : { tflops, ...(peakTflops === undefined ? {} : { mfu: tflops / peakTflops }) }),
    ...phaseSeconds(measured),
    seconds_train: trainSeconds,
    seconds_step: stepSeconds,
  };
}

/** Seconds by phase, under their metrics' names. */
export function phaseSeconds({ seconds }: Pick<Measured, "seconds">): Record<string, number> {
  return Object.fromEntries(Object.entries(seconds).map(([phase, spent]) => [`seconds_${phase}`, spent]));
}

/** What the agent achieved, and how long its calls were. */
function outcomes(claimed: readonly RolloutRecord[], watchFirstTool: string): Record<string, number> {
  const calls = claimed.flatMap((record) => record.calls);
  const responses = calls.map((call) => call.responseTokenIds?.length ?? 0);
  const prompts = calls.map((call) => call.promptTokenIds?.length ?? 0);
  // Live traffic has a person's reward and no verdict of a judge.
  const judged = claimed.flatMap(({ outcome }) => (outcome === null ? [] : [outcome]));
  const verdicts = {
    first_tool_rate: mean(judged.map(({ tools }) => (tools[0] === watchFirstTool ? 1 : 0))),
    correct_rate: mean(judged.map(({ correctness }) => correctness)),
    format_rate: mean(judged.map(({ format }) => format)),
  };
  return {
    ...rewards(claimed),
    ...(judged.length === 0 ? {} : verdicts),
    turns_mean: mean(claimed.map((record) => record.calls.length)),
    prompt_tokens_mean: mean(prompts),
    prompt_tokens_max: largest(prompts),
    response_tokens_mean: mean(responses),
    response_tokens_max: largest(responses),
    truncated_fraction: mean(calls.map((call) => (call.finishReason === "length" ? 1 : 0))),
  };
}

/** Mean and deviation of the rewards: of all, by task, and by the roles that took part in a rollout. */
function rewards(claimed: readonly RolloutRecord[]): Record<string, number> {
  const byTask = new Map<string, RolloutRecord[]>();
  const byRole = new Map<string, RolloutRecord[]>();
  for (const record of claimed) {
    if (record.taskId !== null) addTo(byTask, record.taskId, record);
    for (const role of new Set(record.calls.map((call) => call.role))) addTo(byRole, role, record);
  }
  return {
    ...rewardsOf(claimed, (name) => name),
    ...Object.assign(
      {},
      ...[...byRole].map(([role, part]) => rewardsOf(part, (name) => labelledKey(name, "role", role))),
    ),
    ...(byTask.size > MAX_TASKS
      ? {}
      : Object.assign(
          {},
          ...[...byTask].map(([task, part]) => rewardsOf(part, (name) => labelledKey(name, "task", task))),
        )),
  };
}

/** A rollout without a reward is no reward of 0. */
function rewardsOf(records: readonly RolloutRecord[], keyOf: (name: string) => string): Record<string, number> {
  const values = records.flatMap((record) => record.reward ?? []);
  return { [keyOf("reward_mean")]: mean(values), [keyOf("reward_std")]: deviation(values) };
}

function staleness(versions: readonly number[]): Record<string, number> {
  const oldest = largest(versions);
  const counts = Array.from({ length: oldest + 1 }, (_, age) => versions.filter((each) => each === age).length);
  return {
    staleness_mean: mean(versions),
    staleness_max: oldest,
    ...keyed("staleness_rollouts", "versions", counts.entries()),
  };
}

/** Nothing where no rollout had a second call: there was none to merge. */
function mergeRate(trajectories: readonly Pick<Trajectory, "merges" | "breaks">[]): Record<string, number> {
  const merged = sum(trajectories.map(({ merges }) => merges));
  const broken = sum(trajectories.flatMap(({ breaks }) => Object.values(breaks)));
  return merged + broken === 0 ? {} : { merge_rate: merged / (merged + broken) };
}

/** How often something happened, in all and by its reason. */
function reasons(name: string, counts: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const totals = new Map<string, number>();
  for (const each of counts) {
    for (const [reason, count] of Object.entries(each)) totals.set(reason, (totals.get(reason) ?? 0) + count);
  }
  return { [name]: sum([...totals.values()]), ...keyed(name, "reason", totals) };
}

function keyed(
  name: string,
  label: Label,
  values: Iterable<readonly [string | number, number]>,
): Record<string, number> {
  return Object.fromEntries([...values].map(([value, count]) => [labelledKey(name, label, value), count]));
}

function addTo<T>(groups: Map<string, T[]>, key: string, item: T): void {
  const group = groups.get(key);
  if (group === undefined) groups.set(key, [item]);
  else group.push(item);
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

/** Adds a batch's rewards to the run's versions that sampled them, by each rollout's oldest call; other runs' are left out. */
export function sampledRewards(
  rewards: LoopState["rewards"],
  claimed: readonly RolloutRecord[],
  { base, made }: LoopState["lineage"],
): LoopState["rewards"] {
  const sums = new Map(rewards.map(({ version, ...rest }) => [version, rest]));
  for (const { reward, calls } of claimed) {
    const versions = calls.flatMap((call) => (call.policyVersion === null ? [] : [call.policyVersion]));
    if (reward === null || versions.length === 0) continue;
    const oldest = Math.min(...versions);
    if (oldest !== base && !made.includes(oldest)) continue;
    const { sum: total, count } = sums.get(oldest) ?? { sum: 0, count: 0 };
    sums.set(oldest, { sum: total + reward, count: count + 1 });
  }
  return [...sums].map(([version, rest]) => ({ version, ...rest })).toSorted((a, b) => a.version - b.version);
}

/**
 * The version whose rollouts and those of its two neighbours earned most on average; undefined where none has any.
 * @param isCandidate which versions may be the best; all where absent
 */
export function bestVersion(
  rewards: LoopState["rewards"],
  isCandidate: (version: number) => boolean = () => true,
): number | undefined {
  let best: { version: number; mean: number } | undefined;
  for (const [at, { version }] of rewards.entries()) {
    if (!isCandidate(version)) continue;
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

/** Of the values as they are, not of what they were drawn from: divided by n. */
function deviation(values: readonly number[]): number {
  const middle = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - middle) ** 2)));
}

function largest(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, value), 0);
}
