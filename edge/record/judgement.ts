import type { Evaluator } from "#shared/agent-settings.ts";
import { messageOf } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import type { AttemptRef } from "#shared/store/rollouts.ts";
import { readTask } from "#shared/store/tasks.ts";
import type { EvaluatorDeps } from "./evaluators/contract.ts";
import type { SlowEvaluator } from "./evaluators/table.ts";
import type { Evidence } from "./evidence.ts";
import type { RewardWeights } from "./reward.ts";
import { askJudge, chooseJudge, judgeResult, slowEvaluatorOf, type Verdict } from "./terminal.ts";

/** What became of judging: a verdict, nobody to judge, or the reason why the judge could not. */
export type Judgement =
  | { readonly type: "judged"; readonly verdict: Verdict }
  | { readonly type: "unjudged" }
  /** Never a reason to try the rollout again: its agent did its part. */
  | { readonly type: "failed"; readonly error: string };

/** What judging of one result takes. */
export interface JudgeCase {
  readonly evidence: Evidence;
  readonly weights: RewardWeights | undefined;
  readonly result: string | null;
  /** In place of the task's judge and the agent's evaluator. */
  readonly instead?: Evaluator | undefined;
}

export interface JudgeDeps {
  readonly db: StoreDb;
  readonly evaluators?: EvaluatorDeps | undefined;
}

/** How long an evaluator that has to be asked may take. */
export const JUDGE_TIMEOUT_MS = 20_000;
/** Evaluators that are asked at a time. */
export const JUDGES_AT_ONCE = 8;

/** Judges at once where the text alone is enough; otherwise says whom to ask. Never throws. */
export function judgeQuickly(given: JudgeCase): Judgement | SlowCase {
  try {
    const chosen = chooseJudge(given.evidence.judge, given.weights, given.instead);
    if (chosen === null) return { type: "unjudged" };
    const slow = slowEvaluatorOf(chosen);
    if (slow !== undefined && chosen.type === "evaluator") {
      return { type: "slow", evaluator: slow, expected: chosen.expected, given };
    }
    return { type: "judged", verdict: judgeResult(chosen, given.result, given.weights?.correctnessShare) };
  } catch (thrown) {
    return { type: "failed", error: messageOf(thrown) };
  }
}

/** Somebody has to be asked. */
export interface SlowCase {
  readonly type: "slow";
  readonly evaluator: SlowEvaluator;
  readonly expected: Parameters<typeof askJudge>[1]["expected"];
  readonly given: JudgeCase;
}

/** Asks the evaluator, for as long as {@link JUDGE_TIMEOUT_MS}. Never throws. */
export async function judgeSlowly({ db, evaluators = {} }: JudgeDeps, slow: SlowCase): Promise<Judgement> {
  const { evidence, weights, result } = slow.given;
  const { rollout } = evidence;
  const ref: AttemptRef = { tenantId: rollout.tenantId, rolloutId: rollout.id, attempt: rollout.attempt };
  try {
    const task = rollout.taskId === null ? undefined : await readTask(db, rollout.tenantId, rollout.taskId);
    const verdict = await withinTime((signal) =>
      askJudge(
        slow.evaluator,
        {
          result,
          expected: slow.expected,
          input: task?.input ?? null,
          calls: evidence.calls.map((call) => call.response),
          ref,
          signal,
        },
        { deps: evaluators, share: weights?.correctnessShare },
      ),
    );
    return { type: "judged", verdict };
  } catch (thrown) {
    return { type: "failed", error: messageOf(thrown) };
  }
}

/** Gives up at the time limit even where what is asked does not listen to its signal. */
async function withinTime<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const stop = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const error = new Error(`the evaluator took longer than ${JUDGE_TIMEOUT_MS} ms`);
      reject(error);
      stop.abort(error);
    }, JUDGE_TIMEOUT_MS);
  });
  try {
    return await Promise.race([work(stop.signal), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** As `Promise.all` over the items, a few at a time; results in the items' order. */
export async function fewAtATime<T, R>(
  items: readonly T[],
  atOnce: number,
  work: (item: T) => Promise<R>,
): Promise<R[]> {
  const results: R[] = [];
  const queue = items.entries();
  const worker = async (): Promise<void> => {
    for (const [at, item] of queue) results[at] = await work(item);
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker));
  return results;
}
