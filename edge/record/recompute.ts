import type { SuccessRules } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { newId } from "#shared/ids.ts";
import {
  listRecomputable,
  readReplaceable,
  readToolTraffic,
  replaceRewards,
  type PagePlace,
  type Recomputable,
  type ToolTraffic,
} from "#shared/store/reward-revisions.ts";
import type { NewReward, Reward } from "#shared/store/rewards.ts";
import type { AttemptRef, Rollout } from "#shared/store/rollouts.ts";
import type { StoreWriter } from "#shared/store/statement.ts";
import type { Recomputed, RecomputeInput } from "#shared/wire-feedback.ts";
import { airReward, judgeTool, type AirOptions } from "./air.ts";
import type { EvaluatorDeps } from "./evaluators/contract.ts";
import { readEvidence, type Evidence } from "./evidence.ts";
import type { FinishDeps } from "./finish.ts";
import { fewAtATime, judgeQuickly, judgeSlowly, JUDGES_AT_ONCE, type Judgement } from "./judgement.ts";
import { computeReward, ownOf, type ComputedReward, type RewardWeights } from "./reward.ts";
import { verdict } from "./terminal.ts";
import { recordedToolResults, toolCallsOf } from "./tool-results.ts";

/**
 * Rewards of stored rollouts under other settings: AIR signals from the requests that were stored, terminal rewards from the
 * results, feedback blended in. What an evaluator that has to be asked said stays as it was unless it is another evaluator.
 */

export interface RecomputeDeps {
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact">;
  readonly agents: FinishDeps["agents"];
  readonly evaluators?: EvaluatorDeps;
  readonly now: () => number;
}

/** Rollouts whose requests are read at a time; each may be megabytes. */
const READS_AT_ONCE = 4;
/** Failures that are told one by one. */
const MAX_TOLD = 20;
/** Smaller differences are the arithmetic's. */
const TOLERANCE = 1e-9;

/**
 * One page. Repeatable: what is as it should be is not touched, so a page whose answer was lost is simply asked for again.
 * @throws FulgurError ERR_INVALID_REQUEST for a cursor that is none of ours, ERR_STORE while the store is away
 */
export async function recomputePage(
  deps: RecomputeDeps,
  tenantId: string,
  request: Omit<RecomputeInput, "after"> & { readonly after?: string | undefined },
): Promise<Recomputed> {
  const { limit, dryRun, includeTrained, settings, after, ...filter } = request;
  const page = await listRecomputable(deps.db, tenantId, {
    ...filter,
    limit,
    ...(after === undefined ? {} : { after: placeOf(after) }),
  });
  const wanted = page.filter(({ batch }) => batch === "none" || (batch === "trained" && includeTrained));
  const ids = wanted.map(({ rollout }) => rollout.id);
  const [evidence, rewards] = await Promise.all([
    readEvidence(deps.db, tenantId, ids),
    readReplaceable(deps.db, tenantId, ids),
  ]);
  const done = await fewAtATime(wanted, settings.evaluator === undefined ? READS_AT_ONCE : JUDGES_AT_ONCE, (each) =>
    recompute(deps, each, {
      settings,
      evidence: evidence.get(each.rollout.id),
      rewards: rewards.filter((row) => row.rolloutId === each.rollout.id && row.attempt === each.rollout.attempt),
    }),
  );
  const failed = done.flatMap((each) => (each.type === "failed" ? [{ rollout_id: each.id, error: each.error }] : []));
  const changes = done.filter((each) => each.type === "changed");
  const changed = dryRun ? changes.length : await store(deps, changes, includeTrained);
  const last = page.length === limit ? page.at(-1)?.rollout : undefined;
  return {
    scanned: page.length,
    changed,
    skipped: page.length - wanted.length,
    failed: failed.slice(0, MAX_TOLD),
    failures: failed.length,
    before: sumOf(wanted.map(({ rollout }) => rollout.reward)),
    after: sumOf(done.map((each) => each.reward)),
    nextAfter: last === undefined ? null : `${last.createdAt}:${last.id}`,
  };
}

interface Changed {
  readonly type: "changed";
  readonly ref: AttemptRef;
  readonly was: number | null;
  readonly reward: number | null;
  readonly computed: ComputedReward;
  readonly rewards: readonly NewReward[];
}
type Done =
  | Changed
  | { readonly type: "same"; readonly reward: number | null }
  | { readonly type: "failed"; readonly id: string; readonly error: string; readonly reward: number | null };

interface Stored {
  readonly settings: RecomputeInput["settings"];
  readonly evidence: Evidence | undefined;
  /** Of the attempt: `air`, `terminal` and `explicit`, oldest first. */
  readonly rewards: readonly Reward[];
}

async function recompute(deps: RecomputeDeps, { rollout }: Recomputable, stored: Stored): Promise<Done> {
  const { settings, evidence, rewards } = stored;
  if (evidence === undefined) return { type: "same", reward: rollout.reward };
  const ref = { tenantId: rollout.tenantId, rolloutId: rollout.id, attempt: rollout.attempt };
  const known = ownOf(deps.agents, rollout.agent);
  const weights: RewardWeights = { ...(known ?? { tools: {}, alpha: 0 }), ...settings };
  const before = rewards.find((row) => row.source === "terminal");
  const explicit = givenReward(rewards, before);
  const judgement: Judgement =
    explicit === undefined
      ? await judge(deps, { evidence, weights, settings, hadVerdict: before?.name === "judge" })
      : { type: "unjudged" };
  if (judgement.type === "failed") {
    return { type: "failed", id: rollout.id, error: judgement.error, reward: rollout.reward };
  }
  const air = airAnew(await readToolTraffic(deps.db, ref), rewards, {
    ...ref,
    ...airSettings(weights),
    now: deps.now(),
  });
  const computed = computeReward(weights, {
    rewards: air.map(({ source, name, value }) => ({ source, name, value })),
    verdict: judgement.type === "judged" ? judgement.verdict : keptParts(rollout, explicit),
    explicit,
    feedback: evidence.rewards.filter((seen) => seen.source === "feedback").map((seen) => seen.value),
    blend: "with feedback",
    tools: evidence.calls.flatMap((call) => toolCallsOf(call.response).map(({ name }) => name)),
  });
  const terminal = terminalAnew(computed, { ref, before, explicit, now: deps.now() });
  const replaced = [...air, ...terminal];
  const isSame =
    isClose(rollout.reward, computed.total) &&
    isClose(rollout.outcome?.terminal ?? null, computed.outcome?.terminal ?? null) &&
    isClose(rollout.outcome?.correctness ?? null, computed.outcome?.correctness ?? null) &&
    signature(rewards.filter((row) => row.source !== "explicit")) === signature(replaced);
  if (isSame) return { type: "same", reward: rollout.reward };
  return { type: "changed", ref, was: rollout.reward, reward: computed.total, computed, rewards: replaced };
}

/** The terminal reward that somebody gave: when the rollout ended, or later than that; the latest. */
function givenReward(rewards: readonly Reward[], terminal: Reward | undefined): number | undefined {
  const given = rewards.filter((row) => row.source === "explicit" && row.callId === null);
  const endedWith = terminal?.name === "explicit" ? terminal : undefined;
  const later = given.findLast((row) => terminal === undefined || row.createdAt > terminal.createdAt);
  return later?.value ?? endedWith?.value;
}

interface Judging {
  readonly evidence: Evidence;
  readonly weights: RewardWeights;
  readonly settings: RecomputeInput["settings"];
  readonly hadVerdict: boolean;
}

async function judge(deps: RecomputeDeps, { evidence, weights, settings, hadVerdict }: Judging): Promise<Judgement> {
  const { rollout } = evidence;
  const first = judgeQuickly({ evidence, weights, result: rollout.result, instead: settings.evaluator });
  if (first.type !== "slow") return first;
  const { outcome } = rollout;
  if (settings.evaluator === undefined && hadVerdict && outcome !== null) {
    return { type: "judged", verdict: verdict(outcome, weights.correctnessShare) };
  }
  return judgeSlowly(deps, first);
}

/** Where a reward was given, what a judge had said besides stays beside it. */
function keptParts(rollout: Rollout, explicit: number | undefined): ReturnType<typeof verdict> | undefined {
  return explicit === undefined || rollout.outcome === null ? undefined : verdict(rollout.outcome);
}

function airSettings({ tools, success }: RewardWeights): {
  tools: AirOptions["tools"];
  success: Record<string, SuccessRules>;
} {
  return { tools, success: success ?? {} };
}

/**
 * The attempt's AIR signals under the settings. A tool call's outcome is read from the first request that shows its result;
 * one that was told by a span or an event is as it was told, since the store has nothing else of it.
 */
function airAnew(traffic: readonly ToolTraffic[], rewards: readonly Reward[], options: AirOptions): NewReward[] {
  const outcomes = new Map<string, { readonly tool: string; readonly succeeded: boolean }>();
  const stored = new Map(
    rewards.flatMap((row) => {
      const signal = row.source === "air" ? signalOf(row) : undefined;
      return signal === undefined ? [] : [[signal.toolCallId, { row, ...signal }] as const];
    }),
  );
  for (const { toolCallId, row, succeeded, isTold } of stored.values()) {
    if (isTold) outcomes.set(toolCallId, { tool: row.name, succeeded });
  }
  const toolOfCall = new Map<string, string>();
  for (const { dialect, request, response } of traffic) {
    for (const { toolCallId, tool, text, failed } of recordedToolResults(dialect, request, toolOfCall)) {
      if (tool === undefined || outcomes.has(toolCallId)) continue;
      const succeeded = failed ? false : judgeTool(options, tool, text);
      if (succeeded !== undefined) outcomes.set(toolCallId, { tool, succeeded });
    }
    for (const { id, name } of toolCallsOf(response)) toolOfCall.set(id, name);
  }
  return [...outcomes].flatMap(([toolCallId, outcome]) => {
    const before = stored.get(toolCallId);
    const reward = airReward({ toolCallId, ...outcome }, options);
    if (reward === undefined) return [];
    return before === undefined
      ? [reward]
      : [{ ...reward, id: before.row.id, detail: before.detail(outcome.succeeded), createdAt: before.row.createdAt }];
  });
}

/** What an `air` row tells of its tool call; undefined for one of another make, which a recomputation replaces. */
function signalOf({ key, rolloutId, attempt, value, detail }: Reward) {
  const prefix = `air:${rolloutId}:${attempt}:`;
  if (!key.startsWith(prefix)) return undefined;
  const fields = typeof detail === "object" && detail !== null && !Array.isArray(detail) ? detail : {};
  const seen = fields["seen"];
  return {
    toolCallId: key.slice(prefix.length),
    succeeded: typeof fields["succeeded"] === "boolean" ? fields["succeeded"] : value > 0,
    isTold: seen === "span" || seen === "event",
    detail: (succeeded: boolean) => ({ ...fields, succeeded }),
  };
}

interface TerminalAnew {
  readonly ref: AttemptRef;
  readonly before: Reward | undefined;
  readonly explicit: number | undefined;
  readonly now: number;
}

function terminalAnew(
  { terminal, outcome }: ComputedReward,
  { ref, before, explicit, now }: TerminalAnew,
): NewReward[] {
  if (terminal === undefined) return [];
  return [
    {
      id: before?.id ?? newId("reward"),
      tenantId: ref.tenantId,
      key: `terminal:${ref.rolloutId}:${ref.attempt}`,
      rolloutId: ref.rolloutId,
      attempt: ref.attempt,
      callId: null,
      source: "terminal",
      name: explicit === undefined ? "judge" : "explicit",
      value: terminal,
      detail: outcome === null ? null : { correctness: outcome.correctness, format: outcome.format },
      createdAt: before?.createdAt ?? now,
    },
  ];
}

async function store(deps: RecomputeDeps, changes: readonly Changed[], includeTrained: boolean): Promise<number> {
  if (changes.length === 0) return 0;
  const trained = includeTrained ? "included" : "left alone";
  const each = changes.map(({ ref, was, reward, computed, rewards }) =>
    replaceRewards({ ...ref, was, reward, outcome: computed.outcome, rewards, trained }, deps.now()),
  );
  const rows = await deps.writer.transact(each.flat());
  let at = 0;
  let changed = 0;
  for (const statements of each) {
    at += statements.length;
    changed += rows[at - 1]?.length ?? 0;
  }
  return changed;
}

/** What rewards say, in any order. */
function signature(rewards: readonly NewReward[]): string {
  return rewards
    .map(({ key, name, value }) => `${key} ${name} ${value.toFixed(9)}`)
    .sort()
    .join("\n");
}

function isClose(a: number | null, b: number | null): boolean {
  return a === null || b === null ? a === b : Math.abs(a - b) < TOLERANCE;
}

function sumOf(rewards: readonly (number | null)[]): { rewarded: number; sum: number } {
  const known = rewards.filter((reward) => reward !== null);
  return { rewarded: known.length, sum: known.reduce((sum, reward) => sum + reward, 0) };
}

function placeOf(cursor: string): PagePlace {
  const [, at, id] = /^(\d{1,16}):(.+)$/.exec(cursor) ?? [];
  if (at !== undefined && id !== undefined) return { createdAt: Number(at), id };
  throw new FulgurError("ERR_INVALID_REQUEST", "`after` wants the next_after of the page before");
}
