import type { Evaluator, ModelTarget } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import type { AttemptRef } from "#shared/store/rollouts.ts";
import type { Json } from "#shared/tables.ts";

/** What an evaluator says of a result; each part is in [0, 1]. */
export interface Score {
  readonly correctness: number;
  readonly format: number;
}

/** What an evaluator is given. */
export interface Given {
  /** The text that the agent ended with. */
  readonly result: string;
  /** Of the task's judge; null where nothing is expected. */
  readonly expected: Json;
}

/** What an evaluator that asks somebody else is given besides. */
export interface SlowGiven extends Given {
  readonly ref: AttemptRef;
  /** What the agent was given; null where there is no task. */
  readonly input: Json;
  /** The assistant's messages of the attempt's calls, oldest first. */
  readonly calls: readonly (Json | null)[];
  readonly signal: AbortSignal;
}

/** The world around evaluators; what is absent makes those that need it say so. */
export interface EvaluatorDeps {
  /** Asks a model as a call of that rollout with role `judge`, which is recorded and never trained on; gives its text. */
  readonly askModel?: (
    target: ModelTarget,
    messages: readonly JudgeMessage[],
    of: { readonly ref: AttemptRef; readonly signal: AbortSignal },
  ) => Promise<string>;
  /** The service binding of a name; undefined where the edge has none. */
  readonly service?: (binding: string) => typeof fetch | undefined;
  /** For evaluators at a URL. */
  readonly fetch?: typeof fetch;
}

export interface JudgeMessage {
  readonly role: "system" | "user";
  readonly content: string;
}

export type EvaluatorOf<T extends Evaluator["type"]> = Extract<Evaluator, { type: T }>;

/** Scores from the text alone. Throws FulgurError ERR_INVALID_REQUEST where it cannot judge. */
export type Evaluate<T extends Evaluator["type"]> = (evaluator: EvaluatorOf<T>, given: Given) => Score;

/** Scores by asking somebody. Throws where it cannot judge; whoever waits gives up at the signal. */
export type EvaluateSlowly<T extends Evaluator["type"]> = (
  evaluator: EvaluatorOf<T>,
  given: SlowGiven,
  deps: EvaluatorDeps,
) => Promise<Score>;

/** An evaluator that cannot judge: the rollout has no reward then, which is not a reward of 0. */
export function cannotJudge(why: string, cause?: unknown): FulgurError {
  return new FulgurError("ERR_INVALID_REQUEST", `the evaluator cannot judge: ${why}`, { cause });
}
