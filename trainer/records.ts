import type { Outcome } from "#shared/tables.ts";
import type { BatchStatus, DropReason, RolloutStatus, Split } from "#shared/words.ts";
import type { RecordedCall } from "./batch/trajectories.ts";

/** What the trainer reads of the store. store-reader.ts is the real one; tests have one in memory. */
export interface Records {
  policy(name: string): Promise<PolicyRecord | undefined>;
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
  /** The greatest group id of the run's train rollouts. */
  lastGroupId(runId: string): Promise<string | undefined>;
  /** Rollouts of a batch that are not dropped, each with the calls and rewards of its last attempt. */
  batchRollouts(batchId: string): Promise<RolloutRecord[]>;
  /** How many of these rollouts are in which state. */
  countStatuses(ids: readonly string[]): Promise<Readonly<Partial<Record<RolloutStatus, number>>>>;
  outcomes(ids: readonly string[]): Promise<OutcomeRecord[]>;
  totals(runId: string): Promise<RunTotals>;
}

export interface PolicyRecord {
  readonly routeVersion: number;
  /** Highest number that is taken. */
  readonly lastVersion: number;
  /** Folder of version 0. */
  readonly baseArtifact: string;
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
  /** Still queued or running. */
  readonly open: number;
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
