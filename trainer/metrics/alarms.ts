/**
 * What should worry, found in a run's metrics. An alarm is raised once when its condition begins, and again only after
 * the condition has been away for a while: a warning in every step is soon read by nobody.
 */

/** The metrics of a step by name (docs/METRICS.md). */
export type Metrics = Readonly<Record<string, number>>;

export interface Alarm {
  readonly name: AlarmName;
  /** What was found, and what to look at. */
  readonly message: string;
}

interface Rule {
  /** What is wrong at the last step; undefined where nothing is. */
  readonly found: (past: Past) => string | undefined;
  /** What to look at, and what helps. */
  readonly look: string;
}

/** Steps that are averaged: one batch is noisy. */
const WINDOW = 3;
/** Steps before the last few that a sudden rise is measured against. */
const BEFORE = 10;
/** Steps without its condition after which an alarm may be raised again. */
const QUIET_STEPS = 5;

const RULES = {
  reward_collapse: {
    found: rewardCollapse,
    look: "look at the rollouts of the last steps; begin again from a better version with a lower --learning-rate, or with --kl-coefficient",
  },
  entropy_collapse: {
    found: entropyCollapse,
    look: "the policy has become certain without earning more: lower --learning-rate, or give --entropy-bonus",
  },
  kl_blow_up: {
    found: klBlowUp,
    look: "a step moves the policy too far: lower --learning-rate or --updates-per-batch, or raise --kl-coefficient",
  },
  no_spread: {
    found: noSpread,
    look: "the tasks are too easy or too hard for the policy: look at reward_mean/task, choose other tasks, or raise --group-size",
  },
  stale: {
    found: stale,
    look: "rollouts take longer than --max-staleness steps: raise it, run more agents at once, or give --when-stale wait",
  },
  mismatch: {
    found: mismatch,
    look: "training and inference disagree about the same weights: see that the server samples with --temperature, untruncated, in the trainer's precision, and that its version is the one that was published",
  },
  ess: {
    found: ({ recent }) => {
      const ess = recent.at(-1)?.["ess"] ?? 1;
      return ess < 0.3 ? `ess is ${ess.toFixed(2)}` : undefined;
    },
    look: "few samples carry the batch: lower --max-staleness or --learning-rate",
  },
  importance_weight: {
    found: ({ recent }) => {
      const weight = recent.at(-1)?.["importance_weight_mean"] ?? 1;
      return weight < 0.5 || weight > 2
        ? `importance_weight_mean is ${weight.toFixed(2)}, which should be near 1`
        : undefined;
    },
    look: "lower --max-staleness",
  },
  truncation: {
    found: truncation,
    look: "answers grow into their limit and are cut off: raise the agent's max_tokens, or give --algorithm dapo, which takes from the reward of overlong answers",
  },
} as const satisfies Record<string, Rule>;

export type AlarmName = keyof typeof RULES;
export const ALARM_NAMES = Object.keys(RULES) as readonly AlarmName[];

/** What the rules look at of all steps so far. It does not grow with the run. */
interface Past {
  readonly steps: number;
  /** The first few steps. */
  readonly start: readonly Metrics[];
  /** The last ones, oldest first. */
  readonly recent: readonly Metrics[];
  /** The best mean reward of a window before the last one; −∞ while there is none. */
  readonly bestReward: number;
  /** The greatest standard deviation of a batch's rewards: a solved task has none any more. */
  readonly rewardDeviation: number;
}

/** Watches a run's steps in their order. */
export class Alarms {
  #past: Past = { steps: 0, start: [], recent: [], bestReward: -Infinity, rewardDeviation: 0 };
  /** Step at which the alarm's condition was last true. */
  readonly #lastTrue = new Map<AlarmName, number>();

  /** Takes the next step. @returns the alarms that begin with it */
  observe(metrics: Metrics): Alarm[] {
    this.#past = followed(this.#past, metrics);
    const now = this.#past.steps;
    return ALARM_NAMES.flatMap((name) => {
      const { found, look } = RULES[name];
      const fact = found(this.#past);
      if (fact === undefined) return [];
      const before = this.#lastTrue.get(name);
      this.#lastTrue.set(name, now);
      return before !== undefined && now - before <= QUIET_STEPS ? [] : [{ name, message: `${fact}; ${look}` }];
    });
  }

  /** Alarms whose condition is true at the last step. */
  get active(): readonly AlarmName[] {
    return ALARM_NAMES.filter((name) => this.#lastTrue.get(name) === this.#past.steps);
  }
}

function followed(past: Past, metrics: Metrics): Past {
  const recent = [...past.recent, metrics].slice(-BEFORE - WINDOW);
  const earlier = mean(recent.slice(-2 * WINDOW, -WINDOW), "reward_mean");
  return {
    steps: past.steps + 1,
    start: past.start.length < WINDOW ? [...past.start, metrics] : past.start,
    recent,
    bestReward: Math.max(past.bestReward, earlier ?? -Infinity),
    rewardDeviation: Math.max(past.rewardDeviation, metrics["reward_std"] ?? 0),
  };
}

/** Against the best before: half the rewards' own deviation, and more than chance makes of so few rollouts. */
function rewardCollapse({ recent, bestReward: best, rewardDeviation }: Past): string | undefined {
  const last = recent.slice(-WINDOW);
  const now = mean(last, "reward_mean");
  if (now === undefined) return undefined;
  const rollouts = last.reduce((sum, step) => sum + (step["rollouts_claimed"] ?? 0), 0);
  const far = rewardDeviation * Math.max(0.5, 5 * Math.sqrt(2 / Math.max(1, rollouts)));
  if (far === 0 || best - now < far) return undefined;
  return `reward_mean has fallen from ${best.toFixed(3)} at its best to ${now.toFixed(3)}, over ${WINDOW} steps each`;
}

function entropyCollapse(past: Past): string | undefined {
  if (past.steps < 2 * WINDOW || hasGained(past)) return undefined;
  const start = mean(past.start, "entropy");
  const now = mean(past.recent.slice(-WINDOW), "entropy");
  if (start === undefined || now === undefined || now >= start / 10) return undefined;
  return `entropy has fallen from ${start.toFixed(3)} nats a token to ${now.toFixed(4)}, and reward_mean has not risen`;
}

/** Over some steps, because one token that was very unlikely makes a step's mean jump. */
function klBlowUp({ recent }: Past): string | undefined {
  const behaviour = lastOf(recent, WINDOW, "kl_behaviour");
  if (Math.min(...behaviour) > 0.1) {
    return `kl_behaviour has been over 0.1 nats a token for ${WINDOW} steps, ${(behaviour.at(-1) ?? 0).toFixed(2)} at the last`;
  }
  const before = recent.slice(0, -WINDOW).flatMap((step) => step["kl_reference"] ?? []);
  const reference = lastOf(recent, WINDOW, "kl_reference");
  if (before.length < 5 || Math.min(...reference) <= Math.max(0.2, 10 * median(before))) return undefined;
  return `kl_reference has risen from ${median(before).toPrecision(2)} nats a token to ${(reference.at(-1) ?? 0).toPrecision(2)}`;
}

/** Where the rewards have risen, groups lose their spread because their tasks are solved: nothing is wrong with that. */
function noSpread(past: Past): string | undefined {
  const count = 5;
  const fractions = lastOf(past.recent, count, "zero_spread_fraction");
  if (Math.min(...fractions) <= 0.5 || hasGained(past)) return undefined;
  return `zero_spread_fraction has been over 0.5 for ${count} steps, ${(fractions.at(-1) ?? 0).toFixed(2)} at the last, and reward_mean has not risen`;
}

function stale({ recent }: Past): string | undefined {
  const shares = lastOf(recent, WINDOW, "dropped_stale").map((dropped, at) => {
    const claimed = recent.slice(-WINDOW)[at]?.["rollouts_claimed"] ?? 0;
    return dropped === 0 ? 0 : dropped / (dropped + claimed);
  });
  if (Math.min(...shares) <= 0.25) return undefined;
  return `${percent(shares.at(-1) ?? 0)} of the rollouts were dropped for their age, and over 25% in ${WINDOW} steps`;
}

/** On samples of the current weights alone: older ones differ by right. */
function mismatch({ recent }: Past): string | undefined {
  const kl = recent.at(-1)?.["mismatch_kl"] ?? 0;
  return kl > 1e-3 ? `mismatch_kl is ${kl.toExponential(1)} nats a token on samples of the current weights` : undefined;
}

function truncation({ steps, start, recent }: Past): string | undefined {
  if (steps < 2 * WINDOW) return undefined;
  const before = mean(start, "truncated_fraction") ?? 0;
  const now = Math.min(...lastOf(recent, WINDOW, "truncated_fraction"));
  if (now <= Math.max(2 * before, before + 0.1)) return undefined;
  return `truncated_fraction has risen from ${percent(before)} to ${percent(now)} and more for ${WINDOW} steps`;
}

/** Whether the mean reward has risen from its start by half of the rewards' deviation. */
function hasGained({ start, recent, rewardDeviation }: Past): boolean {
  const before = mean(start, "reward_mean");
  const now = mean(recent.slice(-WINDOW), "reward_mean");
  return before !== undefined && now !== undefined && now - before > 0.5 * rewardDeviation;
}

/** Undefined where fewer than a window's steps have it. */
function mean(steps: readonly Metrics[], name: string): number | undefined {
  const values = steps.flatMap((step) => step[name] ?? []);
  return values.length < WINDOW ? undefined : values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** The last values of a metric, 0 where it was not measured or the run is shorter. */
function lastOf(recent: readonly Metrics[], count: number, name: string): number[] {
  return Array.from({ length: count }, (_, at) => recent.at(at - count)?.[name] ?? 0);
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? 0;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? 0) + upper) / 2;
}

function percent(share: number): string {
  return `${Math.round(share * 100)}%`;
}
