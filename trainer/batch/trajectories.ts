import type { Sample } from "../engine/contract.ts";

/**
 * From the recorded calls of an attempt to training rows. It knows token ids, not texts: nothing is tokenised here
 * (a call whose upstream gave no ids has nothing to train on, and is counted with its reason).
 */

/** One LLM call as it was recorded; ids are those that the endpoint saw and sampled. */
export interface RecordedCall {
  readonly callId: string;
  /** Null where the endpoint gave no ids. */
  readonly promptTokenIds: Int32Array | null;
  readonly responseTokenIds: Int32Array | null;
  /** In nats, of the distribution sampled from; one per response token. Null where the endpoint gave none. */
  readonly behaviourLogprobs: Float32Array | null;
  /** Null where no policy answered. */
  readonly policyVersion: number | null;
  /** The recorder's word on whether the call is whole: an answer cut off by an error is not trained on. */
  readonly trainable: boolean;
}

/** A call that can be trained on: prompt, action and the probabilities it was drawn with, where they are known. */
export interface Transition {
  readonly callId: string;
  readonly prompt: Int32Array;
  readonly response: Int32Array;
  readonly behaviourLogprobs: Float32Array | null;
  readonly policyVersion: number;
}

/** One training row: one or more transitions of an attempt laid end to end. */
export interface Row extends Sample {
  /** [T]; 0 where the loss mask is 0, and where {@link Row.isBehaviourKnown} is false. */
  readonly behaviourLogprobs: Float32Array;
  /** Whether every one of its transitions came with its log-probabilities. */
  readonly isBehaviourKnown: boolean;
  /** [T]; index into the attempt's transitions, −1 where the loss mask is 0. */
  readonly transitionOfToken: Int32Array;
}

/** Why a recorded call is not trained on. */
export type SkipReason = "untrainable" | "no_token_ids" | "empty_response" | "logprob_count" | "no_version";

/** Why a call could not go on in the row of the calls before it. */
export type BreakReason = "prompt_diverged" | "prompt_shorter";

export interface Trajectory {
  readonly transitions: readonly Transition[];
  readonly rows: readonly Row[];
  /** Transitions that went on in an earlier row. */
  readonly merges: number;
  readonly breaks: Readonly<Partial<Record<BreakReason, number>>>;
  readonly skipped: Readonly<Partial<Record<SkipReason, number>>>;
}

export interface TrajectoryOptions {
  /** Whether calls without log-probabilities are left out (default): only imitation and preference do without. */
  readonly needsLogprobs?: boolean;
}

/**
 * Joins the calls of one attempt and one role into rows by exact token prefixes: where a prompt begins with all
 * tokens of a row so far (its last prompt and its response), the call goes on in that row, and only its new tokens
 * are added; else it opens a new row. A three-turn conversation is one row, so its shared prefix is computed once.
 * Agents that hold several conversations at once are followed too: the longest fitting row wins.
 * @param calls in the order in which they were made
 */
export function buildTrajectory(
  calls: readonly RecordedCall[],
  { needsLogprobs = true }: TrajectoryOptions = {},
): Trajectory {
  const transitions: Transition[] = [];
  const open: OpenRow[] = [];
  const breaks: Partial<Record<BreakReason, number>> = {};
  const skipped: Partial<Record<SkipReason, number>> = {};
  let merges = 0;
  for (const call of calls) {
    const transition = transitionOf(call, needsLogprobs);
    if (typeof transition === "string") {
      skipped[transition] = (skipped[transition] ?? 0) + 1;
      continue;
    }
    const index = transitions.push(transition) - 1;
    const row = longestPrefix(open, transition.prompt);
    if (row !== undefined) {
      merges += 1;
      append(row, transition, index);
      continue;
    }
    const latest = open.at(-1);
    if (latest !== undefined) {
      const reason = transition.prompt.length < latest.tokens.length ? "prompt_shorter" : "prompt_diverged";
      breaks[reason] = (breaks[reason] ?? 0) + 1;
    }
    const fresh: OpenRow = { tokens: [], behaviourLogprobs: [], isBehaviourKnown: true, transitionOfToken: [] };
    append(fresh, transition, index);
    open.push(fresh);
  }
  return { transitions, rows: open.map(close), merges, breaks, skipped };
}

/** The oldest version that sampled any transition: what the staleness of a rollout is measured from. */
export function oldestVersion(transitions: readonly Transition[]): number | undefined {
  return transitions.length === 0 ? undefined : Math.min(...transitions.map((each) => each.policyVersion));
}

interface OpenRow {
  readonly tokens: number[];
  readonly behaviourLogprobs: number[];
  isBehaviourKnown: boolean;
  readonly transitionOfToken: number[];
}

function transitionOf(call: RecordedCall, needsLogprobs: boolean): Transition | SkipReason {
  const { callId, promptTokenIds: prompt, responseTokenIds: response, policyVersion } = call;
  if (!call.trainable) return "untrainable";
  // An empty prompt would make the first response token a target without a prediction.
  if (prompt === null || response === null || prompt.length === 0) return "no_token_ids";
  if (response.length === 0) return "empty_response";
  // Some of them are as good as none.
  const behaviourLogprobs = call.behaviourLogprobs?.length === response.length ? call.behaviourLogprobs : null;
  if (needsLogprobs && behaviourLogprobs === null) return "logprob_count";
  if (policyVersion === null) return "no_version";
  return { callId, prompt, response, behaviourLogprobs, policyVersion };
}

function longestPrefix(rows: readonly OpenRow[], prompt: Int32Array): OpenRow | undefined {
  let best: OpenRow | undefined;
  for (const row of rows) {
    if (row.tokens.length <= (best?.tokens.length ?? 0) || row.tokens.length > prompt.length) continue;
    if (row.tokens.every((token, at) => token === prompt[at])) best = row;
  }
  return best;
}

function append(row: OpenRow, transition: Transition, index: number): void {
  for (const token of transition.prompt.subarray(row.tokens.length)) push(row, token, 0, -1);
  transition.response.forEach((token, at) => push(row, token, transition.behaviourLogprobs?.[at] ?? 0, index));
  row.isBehaviourKnown &&= transition.behaviourLogprobs !== null;
}

function push(row: OpenRow, token: number, behaviourLogprob: number, transition: number): void {
  row.tokens.push(token);
  row.behaviourLogprobs.push(behaviourLogprob);
  row.transitionOfToken.push(transition);
}

function close(row: OpenRow): Row {
  return {
    tokens: Int32Array.from(row.tokens),
    lossMask: Uint8Array.from(row.transitionOfToken, (transition) => (transition < 0 ? 0 : 1)),
    behaviourLogprobs: Float32Array.from(row.behaviourLogprobs),
    isBehaviourKnown: row.isBehaviourKnown,
    transitionOfToken: Int32Array.from(row.transitionOfToken),
  };
}
