import { FulgurError, messageOf } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { recordRewards, type NewReward } from "#shared/store/rewards.ts";
import { closeRollout, readRollout, requeueRollout, type AttemptRef, type Rollout } from "#shared/store/rollouts.ts";
import type { Row, Statement, StoreWriter } from "#shared/store/statement.ts";
import type { Outcome } from "#shared/tables.ts";
import type { DropReason } from "#shared/words.ts";
import { toolsCalled } from "./air.ts";
import { readEvidence, type Evidence } from "./evidence.ts";
import { judgeResult, type Verdict } from "./terminal.ts";

/** How an agent's rewards are weighed; a part of its configuration. */
export interface RewardWeights {
  /** Tool name → weight of its AIR signal. */
  readonly tools: Readonly<Record<string, number>>;
  /** r = α·status + (1 − α)·terminal. */
  readonly alpha: number;
}

export interface FinishDeps {
  /** May be a read-only connection. */
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact" | "status">;
  /** By agent name; an agent that is not there has no tools to be rewarded for. */
  readonly agents: Readonly<Record<string, RewardWeights>>;
  /** Milliseconds since the epoch. */
  readonly now: () => number;
  /** In [0, 1). */
  readonly random: () => number;
}

/** How an attempt ended. Only what the agent itself came to is an outcome; a broken attempt is retried or dropped. */
export type Ending = AttemptRef &
  (
    | { readonly type: "answered"; readonly result: string | null; readonly reward: number | null }
    | { readonly type: "broken"; readonly error: string; readonly reason: BreakReason }
  );
export type BreakReason = Extract<DropReason, "upstream_failed" | "agent_failed" | "timeout">;

/** What became of a rollout: `ended` where that attempt had already ended, and nothing was changed. */
export type Settled =
  | { readonly status: "finished" | "failed" | "ended" }
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
  const decisions = endings.map((ending) =>
    decide(ending, evidence.get(ending.rolloutId), {
      agents: deps.agents,
      now: deps.now(),
      random: deps.random,
    }),
  );
  const statements = [...decisions.flatMap((decision) => decision.statements), ...alongside];
  const rows = statements.length === 0 ? [] : await deps.writer.transact(statements);
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

export interface DecideOptions {
  readonly agents: FinishDeps["agents"];
  readonly now: number;
  readonly random: () => number;
}

/** What an ending does to the store. Pure; every statement is guarded by the attempt being the running one. */
export function decide(
  ending: Ending,
  evidence: Evidence | undefined,
  options: DecideOptions,
): { readonly settled: Settled; readonly statements: Statement[] } {
  const rollout = evidence?.rollout;
  if (
    evidence === undefined ||
    rollout === undefined ||
    rollout.tenantId !== ending.tenantId ||
    rollout.status !== "running" ||
    rollout.attempt !== ending.attempt
  ) {
    return { settled: { status: "ended" }, statements: [] };
  }
  return ending.type === "broken"
    ? retryOrFail(ending, rollout, options)
    : reward(ending, evidence, options.agents[rollout.agent], options.now);
}

function retryOrFail(
  ending: Extract<Ending, { type: "broken" }>,
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
  ending: Extract<Ending, { type: "answered" }>,
  evidence: Evidence,
  weights: RewardWeights | undefined,
  now: number,
): { settled: Settled; statements: Statement[] } {
  const { rollout, judge, rewards, calls } = evidence;
  const tools = weights?.tools ?? {};
  const explicit =
    ending.reward ?? rewards.findLast((seen) => seen.source === "explicit" && seen.callId === null)?.value;

  let verdict: Verdict | undefined;
  let judgeFailure: string | null = null;
  try {
    verdict = judge === null ? undefined : judgeResult(judge, ending.result);
  } catch (thrown) {
    // The agent did its part: a judge that cannot judge must not cost it another attempt.
    judgeFailure = messageOf(thrown);
  }
  const terminal = explicit ?? verdict?.terminal;
  const status = airStatus(tools, rewards);
  const alpha = weights !== undefined && hasWeight(tools) ? weights.alpha : 0;
  const total = terminal === undefined ? null : alpha * status + (1 - alpha) * terminal;
  const outcome: Outcome | null =
    terminal === undefined
      ? null
      : {
          status,
          terminal,
          correctness: verdict?.correctness ?? 0,
          format: verdict?.format ?? 0,
          tools: calls.flatMap((call) => toolsCalled(call.response)),
        };

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
        result: ending.result,
        error: judgeFailure?.slice(0, MAX_ERROR_CHARACTERS) ?? null,
        reward: total,
        outcome,
        disposition: dropReason === null ? null : "dropped",
        dropReason,
      }),
    ],
  };
}

/** Why a finished rollout can never train, or null where it may. Live runs are kept open: feedback may come later. */
function dropReasonOf(rollout: Rollout, { calls }: Evidence, total: number | null): DropReason | null {
  if (rollout.mode === "live") return null;
  if (rollout.mode === "val") return "evaluation";
  if (!calls.some((call) => call.trainable)) return "no_trainable_call";
  return total === null ? "no_reward" : null;
}

/**
 * The status part of the reward: Σ_tools w·mean(±1) / Σ w, in [−1, 1], over the agent's tools; a tool that was never
 * called counts 0, so that calling what helps pays. 0 for an agent without weighed tools.
 */
export function airStatus(
  tools: Readonly<Record<string, number>>,
  rewards: readonly { readonly source: string; readonly name: string; readonly value: number }[],
): number {
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
