import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { recordRewards, type NewReward } from "#shared/store/rewards.ts";
import { closeRollout, readRollout, requeueRollout, type AttemptRef, type Rollout } from "#shared/store/rollouts.ts";
import type { Row, Statement, StoreWriter } from "#shared/store/statement.ts";
import type { DropReason } from "#shared/words.ts";
import { toolCallsOf } from "./tool-results.ts";
import type { EvaluatorDeps } from "./evaluators/contract.ts";
import { readEvidence, type Evidence } from "./evidence.ts";
import { fewAtATime, judgeQuickly, judgeSlowly, JUDGES_AT_ONCE, type Judgement, type SlowCase } from "./judgement.ts";
import { redact } from "./redact.ts";
import { computeReward, ownOf, type RewardWeights } from "./reward.ts";

export type { RewardWeights } from "./reward.ts";

export interface FinishDeps {
  /** May be a read-only connection. */
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact" | "status">;
  /** The tenant's, by name; an agent that is not there has no tools to be rewarded for. */
  readonly agents: Readonly<Record<string, RewardWeights>>;
  /** For judges that have to ask somebody; without it they cannot judge. */
  readonly evaluators?: EvaluatorDeps;
  /**
   * Takes an ending whose judge has to be asked, to be settled again together with its judgement: nothing else then waits
   * for that judge. Where absent, settling itself waits.
   */
  readonly judgeLater?: (ending: Answered, judgement: Promise<Judgement>) => void;
  /** Milliseconds since the epoch. */
  readonly now: () => number;
  /** In [0, 1). */
  readonly random: () => number;
}

/** How an attempt ended. Only what the agent itself came to is an outcome; a broken attempt is retried or dropped. */
export type Ending = Answered | Broken;
export interface Answered extends AttemptRef {
  readonly type: "answered";
  readonly result: string | null;
  /** In place of the judge's terminal reward. */
  readonly reward: number | null;
  /** Where it was judged before. */
  readonly judgement?: Judgement;
}
export interface Broken extends AttemptRef {
  readonly type: "broken";
  readonly error: string;
  readonly reason: BreakReason;
}
export type BreakReason = Extract<DropReason, "upstream_failed" | "agent_failed" | "timeout">;

/**
 * What became of a rollout: `ended` where that attempt had already ended, and nothing was changed; `judging` where its judge
 * is being asked and it will be settled again (see {@link FinishDeps.judgeLater}).
 */
export type Settled =
  | { readonly status: "finished" | "failed" | "ended" | "judging" }
  | { readonly status: "queued"; readonly notBefore: number };

/** Longer error texts are cut: they may quote a whole upstream answer. */
const MAX_ERROR_CHARACTERS = 1000;
/** Together the first two outlast the restart of an inference endpoint. */
const FIRST_RETRY_MS = 1000;
const RETRY_FACTOR = 4;
const LONGEST_RETRY_MS = 30_000;

export interface FinishRequest {
  readonly tenantId: string;
  readonly rolloutId: string;
  /** From the rollout's own token; the newest attempt where absent. */
  readonly attempt?: number | undefined;
  readonly result: string | null;
  readonly error: string | null;
  /** In place of the judge's terminal reward. */
  readonly reward: number | null;
}

/**
 * Ends a rollout's attempt: with its reward, or, where `error` is given, as a failure that is retried or dropped.
 * Repeatable: a rollout that has ended is returned as it is.
 * @throws FulgurError ERR_NOT_FOUND, ERR_CONFLICT when a newer attempt is running (or none has begun), ERR_STORE while
 *   the store is away
 */
export async function finishRollout(deps: FinishDeps, request: FinishRequest): Promise<Rollout> {
  const { tenantId, rolloutId, result, error, reward } = request;
  const before = await readRollout(deps.db, tenantId, rolloutId);
  if (before === undefined) {
    throw new FulgurError("ERR_NOT_FOUND", `there is no rollout ${rolloutId}; GET /v1/rollouts lists those there are`);
  }
  if (before.status !== "running" && before.status !== "queued") return before;
  const attempt = request.attempt ?? before.attempt;
  if (before.status === "queued" || before.attempt !== attempt) {
    throw new FulgurError(
      "ERR_CONFLICT",
      `attempt ${attempt} of rollout ${rolloutId} is not running (it is ${before.status}, attempt ${before.attempt}); only the running attempt can finish it`,
    );
  }
  const ref = { tenantId, rolloutId, attempt };
  await settleAttempts(deps, [
    error === null
      ? { ...ref, type: "answered", result, reward }
      : { ...ref, type: "broken", error, reason: "agent_failed" },
  ]);
  return (await readRollout(deps.db, tenantId, rolloutId)) ?? before;
}

/**
 * Settles many endings, together with whatever else belongs into the same transaction: two round trips in all.
 * @param alongside statements that run after the endings'
 * @returns what became of each ending, and the rows of `alongside`
 * @throws FulgurError ERR_STORE while the store is away: nothing was changed, and it may be repeated
 */
export async function settleAttempts(
  deps: FinishDeps,
  endings: readonly Ending[],
  alongside: readonly Statement[] = [],
): Promise<{ readonly settled: readonly Settled[]; readonly rows: readonly (readonly Row[])[] }> {
  const evidence = await gather(deps, endings);
  const judged = await fewAtATime(endings, JUDGES_AT_ONCE, (ending) =>
    prepare(deps, ending, evidence.get(ending.rolloutId)),
  );
  const decisions = judged.map(({ ending, evidence: seen, weights, judgement }) =>
    judgement.type === "slow"
      ? { settled: { status: "judging" } as const, statements: [] }
      : decide(ending, seen, { weights, judgement, now: deps.now(), random: deps.random }),
  );
  const statements = [...decisions.flatMap((decision) => decision.statements), ...alongside];
  const rows = statements.length === 0 ? [] : await deps.writer.transact(statements);
  // Only now: what the store refuses is settled again, and nobody should be asked twice.
  for (const { ending, judgement } of judged) {
    if (judgement.type === "slow" && ending.type === "answered")
      deps.judgeLater?.(ending, judgeSlowly(deps, judgement));
  }
  return { settled: decisions.map((decision) => decision.settled), rows: rows.slice(rows.length - alongside.length) };
}

async function gather(deps: FinishDeps, endings: readonly Ending[]): Promise<Map<string, Evidence>> {
  if (endings.length === 0) return new Map();
  // A call's record may wait in the writer's outbox; reading around it would settle a rollout without its last rewards.
  const { storeUp, outbox } = await deps.writer.status();
  if (!storeUp || outbox > 0) {
    throw new FulgurError(
      "ERR_STORE",
      `finishing needs every record in the store, ${outbox} wait in the outbox; repeat it in a second`,
    );
  }
  const byTenant = Map.groupBy(endings, (ending) => ending.tenantId);
  const found = await Promise.all(
    [...byTenant].map(([tenantId, ofTenant]) =>
      readEvidence(
        deps.db,
        tenantId,
        ofTenant.map((ending) => ending.rolloutId),
      ),
    ),
  );
  return new Map(found.flatMap((evidence) => [...evidence]));
}

interface Prepared {
  readonly ending: Ending;
  readonly evidence: Evidence | undefined;
  readonly weights: RewardWeights | undefined;
  readonly judgement: Judgement | SlowCase;
}

/** What deciding takes: the agent's weights, and the judgement of a result, or whom to ask for it later. */
async function prepare(deps: FinishDeps, ending: Ending, evidence: Evidence | undefined): Promise<Prepared> {
  const weights = evidence === undefined ? undefined : ownOf(deps.agents, evidence.rollout.agent);
  const prepared = { ending, evidence, weights };
  if (ending.type === "broken" || evidence === undefined || !isRunning(ending, evidence.rollout)) {
    return { ...prepared, judgement: { type: "unjudged" } };
  }
  if (ending.judgement !== undefined) return { ...prepared, judgement: ending.judgement };
  // A session outside the sample: what it answered is not stored, which is no reason to call it wrong.
  if (ending.result === null && evidence.rollout.sessionId !== null) {
    return { ...prepared, judgement: { type: "unjudged" } };
  }
  const first = judgeQuickly({ evidence, weights, result: ending.result });
  if (first.type !== "slow") return { ...prepared, judgement: first };
  // Asking costs time and money, and a reward that was given stands all the same.
  if (givenReward(ending, evidence) !== undefined) return { ...prepared, judgement: { type: "unjudged" } };
  return { ...prepared, judgement: deps.judgeLater === undefined ? await judgeSlowly(deps, first) : first };
}

function isRunning(ending: Ending, rollout: Rollout): boolean {
  return rollout.tenantId === ending.tenantId && rollout.status === "running" && rollout.attempt === ending.attempt;
}

/** The terminal reward that was given with the ending, or before it; the latest. */
function givenReward(ending: Answered, { rewards }: Evidence): number | undefined {
  return ending.reward ?? rewards.findLast((seen) => seen.source === "explicit" && seen.callId === null)?.value;
}

export interface DecideOptions {
  readonly weights: RewardWeights | undefined;
  readonly judgement: Judgement;
  readonly now: number;
  readonly random: () => number;
}

/** What an ending does to the store. Pure; every statement is guarded by the attempt being the running one. */
export function decide(
  ending: Ending,
  evidence: Evidence | undefined,
  options: DecideOptions,
): { readonly settled: Settled; readonly statements: Statement[] } {
  if (evidence === undefined || !isRunning(ending, evidence.rollout)) {
    return { settled: { status: "ended" }, statements: [] };
  }
  return ending.type === "broken" ? retryOrFail(ending, evidence.rollout, options) : reward(ending, evidence, options);
}

function retryOrFail(
  ending: Broken,
  rollout: Rollout,
  { now, random }: DecideOptions,
): { settled: Settled; statements: Statement[] } {
  const notBefore = now + retryDelayMs(ending.attempt, random);
  const statements = requeueRollout(ending, {
    now,
    notBefore,
    error: ending.error.slice(0, MAX_ERROR_CHARACTERS),
    dropReason: ending.reason,
    attemptStatus: ending.reason === "timeout" ? "timeout" : "failed",
  });
  return {
    settled: rollout.attempt < rollout.maxAttempts ? { status: "queued", notBefore } : { status: "failed" },
    statements,
  };
}

/** Four times as long each time, from a second to half a minute; drawn between half and one and a half times that. */
export function retryDelayMs(attempt: number, random: () => number): number {
  const middle = Math.min(FIRST_RETRY_MS * RETRY_FACTOR ** (attempt - 1), LONGEST_RETRY_MS);
  return Math.round(middle * (0.5 + random()));
}

function reward(
  ending: Answered,
  evidence: Evidence,
  { weights, judgement, now }: DecideOptions,
): { settled: Settled; statements: Statement[] } {
  const { rollout, rewards, calls } = evidence;
  const explicit = givenReward(ending, evidence);
  const verdict = judgement.type === "judged" ? judgement.verdict : undefined;
  const { terminal, total, outcome } = computeReward(weights, {
    rewards,
    verdict,
    explicit,
    feedback: rewards.filter((seen) => seen.source === "feedback").map((seen) => seen.value),
    blend: "terminal alone",
    tools: calls.flatMap((call) => toolCallsOf(call.response).map(({ name }) => name)),
  });
  const dropReason = dropReasonOf(rollout, evidence, total);
  const terminalReward: NewReward[] =
    terminal === undefined
      ? []
      : [
          {
            id: newId("reward"),
            tenantId: ending.tenantId,
            key: `terminal:${ending.rolloutId}:${ending.attempt}`,
            rolloutId: ending.rolloutId,
            attempt: ending.attempt,
            callId: null,
            source: "terminal",
            name: explicit === undefined ? "judge" : "explicit",
            value: terminal,
            detail: verdict === undefined ? null : { correctness: verdict.correctness, format: verdict.format },
            createdAt: now,
          },
        ];
  return {
    settled: { status: "finished" },
    statements: [
      ...recordRewards(terminalReward),
      ...closeRollout(ending, {
        now,
        status: "finished",
        result: kept(ending.result, rollout, weights),
        error: judgement.type === "failed" ? judgement.error.slice(0, MAX_ERROR_CHARACTERS) : null,
        reward: total,
        outcome,
        disposition: dropReason === null ? null : "dropped",
        dropReason,
      }),
    ],
  };
}

/** A live result is judged as it is and kept as its agent's rules allow. */
function kept(result: string | null, rollout: Rollout, weights: RewardWeights | undefined): string | null {
  return result === null || rollout.mode !== "live" ? result : redact(result, weights?.live?.redact ?? []).text;
}

/** Why a finished rollout can never train, or null where it may. Live runs are kept open: feedback may come later. */
function dropReasonOf(rollout: Rollout, { calls }: Evidence, total: number | null): DropReason | null {
  if (rollout.mode === "live") return null;
  if (rollout.mode === "val") return "evaluation";
  if (!calls.some((call) => call.trainable)) return "no_trainable_call";
  return total === null ? "no_reward" : null;
}
