import type { Outcome } from "#shared/tables.ts";
import type { BatchStatus, DropReason, RolloutStatus, Split } from "#shared/words.ts";
import type { RecordedCall } from "./batch/trajectories.ts";

/** What the trainer reads of the store. store-reader.ts is the real one; tests have one in memory. */
export interface Records {
  policy(name: string): Promise<PolicyRecord | undefined>;
  /** The highest version number that is registered, by whatever run. */
  lastVersion(policy: string): Promise<number>;
  run(id: string): Promise<RunRecord | undefined>;
  /** In id order. */
  taskIds(agent: string, split: Split): Promise<string[]>;
  batch(id: string): Promise<{ readonly status: BatchStatus; readonly version: number | null } | undefined>;
  /** Trained batches of a run. */
  trainedSteps(runId: string): Promise<number>;
  /**
   * Groups of the run with rollouts that have no disposition and are in no batch, oldest first.
   * @param from id of the oldest one that can still be waiting: spares the store a look at all that are over
   */
  waitingGroups(runId: string, from?: string): Promise<WaitingGroup[]>;
  /** Live rollouts that a claim could take now. */
  countLive(live: LiveQuery): Promise<number>;
  /** The greatest group id of the run's train rollouts. */
  lastGroupId(runId: string): Promise<string | undefined>;
  /** Rollouts of a batch that are not dropped, each with the calls and rewards of its last attempt. */
  batchRollouts(batchId: string): Promise<RolloutRecord[]>;
  /** Those of a batch that an earlier start has dropped as `zero_spread`: they train nothing, and count as claimed. */
  flatRollouts(batchId: string): Promise<RolloutRecord[]>;
  /** How many of these rollouts are in which state. */
  countStatuses(ids: readonly string[]): Promise<Readonly<Partial<Record<RolloutStatus, number>>>>;
  outcomes(ids: readonly string[]): Promise<OutcomeRecord[]>;
  totals(runId: string): Promise<RunTotals>;
  /** What became of rollouts that do not train: asked at each step, so it looks at no rollout that has trained. */
  fates(runId: string, batchId: string): Promise<RolloutFates>;
}

export interface PolicyRecord {
  readonly routeVersion: number;
  /** Folder of version 0. */
  readonly baseArtifact: string;
  /** All of them, version 0 too. */
  readonly versions: readonly VersionRecord[];
}

export interface VersionRecord {
  readonly version: number;
  readonly kind: "base" | "adapter" | "weights";
  /** Its folder. */
  readonly artifact: string;
  /** Of the folder's manifest. */
  readonly sha256: string;
}

/** Which live rollouts: of an agent, begun since then (milliseconds since the epoch), answered by these versions. */
export interface LiveQuery {
  readonly agent: string;
  readonly policy: string;
  readonly since: number;
  readonly versions: readonly number[];
}

export interface RunRecord {
  /** As the trainer put them; null until then. */
  readonly evalBefore: unknown;
  readonly evalAfter: unknown;
  readonly finishedAt: number | null;
}

export interface WaitingGroup {
  readonly groupId: string;
  /** Ids of the rollouts without a disposition. */
  readonly rolloutIds: readonly string[];
  /** Ids of those that are still queued or running. */
  readonly open: readonly string[];
  /** Finished: the group may be claimed once none is open and two or more have finished. */
  readonly finished: number;
}

export interface OutcomeRecord {
  readonly id: string;
  readonly status: RolloutStatus;
  readonly reward: number | null;
  readonly outcome: Outcome | null;
}

export interface RolloutRecord extends OutcomeRecord {
  readonly groupId: string;
  /** Null where nothing was set, as in live traffic. */
  readonly taskId: string | null;
  /** Those of the agent, in the order in which they were made; a judge's are not among them. */
  readonly calls: readonly CallRecord[];
  /** Intermediate rewards by the tool call that earned them. */
  readonly intermediate: readonly IntermediateReward[];
}

export interface CallRecord extends RecordedCall {
  /** Which LLM user of the agent made it, as the agent's model map names it. */
  readonly role: string;
  /** Ids of the tool calls in the answer. */
  readonly toolCallIds: readonly string[];
  /** As OpenAI names it: `length` where the answer was cut off at its limit. Null where none came. */
  readonly finishReason: string | null;
  /** Milliseconds since the epoch. */
  readonly startedAt: number;
  readonly latencyMs: number;
}

export interface IntermediateReward {
  readonly toolCallId: string | null;
  readonly callId: string | null;
  readonly value: number;
}

export interface RunTotals {
  readonly rollouts: number;
  readonly calls: number;
  readonly dropped: Readonly<Partial<Record<DropReason, number>>>;
}

export interface RolloutFates {
  /** Of the batch: dropped after they were claimed. */
  readonly batchDropped: Readonly<Partial<Record<DropReason, number>>>;
  /** Of the run's train rollouts so far: ended without a result. */
  readonly runFailed: Readonly<Partial<Record<DropReason, number>>>;
  /** Of the run, without a disposition: under way, waiting for a batch, or in the one that is being trained. */
  readonly open: number;
}
