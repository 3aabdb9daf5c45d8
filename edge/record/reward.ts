import type { AgentSettings, Evaluator } from "#shared/agent-settings.ts";
import type { Outcome } from "#shared/tables.ts";
import type { AirSettings } from "./air.ts";
import type { Verdict } from "./terminal.ts";

/** What an attempt's reward is made of. Pure: whoever ends a rollout or computes it anew brings the parts. */

/** How an agent's rewards are weighed; a part of its settings. */
export interface RewardWeights extends AirSettings {
  /** r = α·status + (1 − α)·terminal. */
  readonly alpha: number;
  /** Judges where the task brings no judge of its own. */
  readonly evaluator?: Evaluator | undefined;
  /** Share of the terminal reward that the right answer earns; 0.9 where absent. */
  readonly correctnessShare?: number;
  readonly live?: Pick<AgentSettings["live"], "redact">;
}

/** An agent's weights by its name, which may be that of a field that every object has. */
export function ownOf<T>(agents: Readonly<Record<string, T>>, agent: string): T | undefined {
  return Object.hasOwn(agents, agent) ? agents[agent] : undefined;
}

export interface RewardParts {
  /** Of the attempt, `air` among them. */
  readonly rewards: readonly SignedReward[];
  readonly verdict: Verdict | undefined;
  /** A terminal reward that was given, in place of the verdict's. */
  readonly explicit: number | undefined;
  /** What people said of the rollout, each once. */
  readonly feedback: readonly number[];
  /** Whether feedback is averaged with a terminal reward that is there too; else it counts only where there is none. */
  readonly blend: "terminal alone" | "with feedback";
  /** The tools that the attempt called, in order. */
  readonly tools: readonly string[];
}

export interface SignedReward {
  readonly source: string;
  readonly name: string;
  readonly value: number;
}

export interface ComputedReward {
  /** The terminal reward itself, before any feedback; undefined where nobody judged. */
  readonly terminal: number | undefined;
  /** The rollout's reward; null where there is nothing to make one of. */
  readonly total: number | null;
  readonly outcome: Outcome | null;
}

/**
 * α·status + (1 − α)·terminal, with α counting only where a tool has weight. Where there is no terminal reward, the mean of
 * the feedback is the rollout's reward as it is; where there are both and they are to be blended, the terminal part is the
 * mean of the two.
 */
export function computeReward(weights: RewardWeights | undefined, parts: RewardParts): ComputedReward {
  const { rewards, verdict, explicit, feedback, blend, tools } = parts;
  const terminal = explicit ?? verdict?.terminal;
  const said = feedback.length === 0 ? undefined : feedback.reduce((sum, value) => sum + value, 0) / feedback.length;
  if (terminal === undefined) return { terminal, total: said ?? null, outcome: null };
  const blended = said === undefined || blend === "terminal alone" ? terminal : (terminal + said) / 2;
  const weighed = weights?.tools ?? {};
  const status = airStatus(weighed, rewards);
  const alpha = weights !== undefined && hasWeight(weighed) ? weights.alpha : 0;
  return {
    terminal,
    total: alpha * status + (1 - alpha) * blended,
    outcome: {
      status,
      terminal: blended,
      correctness: verdict?.correctness ?? 0,
      format: verdict?.format ?? 0,
      tools,
    },
  };
}

/**
 * The status part of the reward: Σ_tools w·mean(±1) / Σ w, in [−1, 1], over the agent's tools; a tool that was never
 * called counts 0, so that calling what helps pays. 0 for an agent without weighed tools.
 */
export function airStatus(tools: Readonly<Record<string, number>>, rewards: readonly SignedReward[]): number {
  let weighed = 0;
  let weightSum = 0;
  for (const [tool, weight] of Object.entries(tools)) {
    const signs = rewards
      .filter((seen) => seen.source === "air" && seen.name === tool)
      .map((seen) => Math.sign(seen.value));
    const mean = signs.length === 0 ? 0 : signs.reduce((sum, sign) => sum + sign, 0) / signs.length;
    weighed += weight * mean;
    weightSum += weight;
  }
  return weightSum === 0 ? 0 : weighed / weightSum;
}

function hasWeight(tools: Readonly<Record<string, number>>): boolean {
  return Object.values(tools).some((weight) => weight > 0);
}
