import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import type { AgentSettings } from "#shared/agent-settings.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { giveFeedback, readFeedbackTarget, readRolloutOfCall, type FeedbackTarget } from "#shared/store/feedback.ts";
import { transact, type StoreWriter } from "#shared/store/statement.ts";
import type { FeedbackInput, FeedbackRefusal, FeedbackTaken } from "#shared/wire-feedback.ts";
import { redact } from "./redact.ts";

/**
 * What people say of a rollout after the fact. Feedback is a reward of its own. Where nobody judged the rollout, its mean
 * is the rollout's reward at once; beside a terminal reward it stays apart until the rewards are computed anew.
 */

/** What of an agent's settings feedback depends on. */
export type FeedbackSettings = Pick<AgentSettings, "feedback"> & {
  readonly live?: Pick<AgentSettings["live"], "redact">;
};

export interface FeedbackDeps {
  readonly db: StoreDb;
  readonly writer: Pick<StoreWriter, "transact">;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

/** Of an agent that is not known any more. */
const DEFAULT_SETTINGS: FeedbackSettings = { feedback: { window_hours: 72, modes: ["live"] } };

export interface FeedbackAbout {
  readonly target: FeedbackTarget;
  readonly attempt: number;
  readonly callId: string | null;
}

/**
 * Finds the rollout that feedback is about, by its own id or by that of one of its calls.
 * @throws FulgurError ERR_INVALID_REQUEST where neither id is given or the call is another rollout's, ERR_NOT_FOUND
 */
export async function findFeedbackTarget(
  db: StoreDb,
  tenantId: string,
  { rolloutId, callId }: Pick<FeedbackInput, "rolloutId" | "callId">,
): Promise<FeedbackAbout> {
  if (rolloutId === undefined && callId === undefined) {
    throw new FulgurError("ERR_INVALID_REQUEST", "feedback wants a rollout_id or a call_id");
  }
  const recordId = callId === undefined ? undefined : recordOf(callId);
  const call = recordId === undefined ? undefined : await readRolloutOfCall(db, tenantId, recordId);
  if (callId !== undefined && call === undefined) {
    throw new FulgurError("ERR_NOT_FOUND", `there is no call ${callId}; its id came with the answer (x-fulgur-call)`);
  }
  if (rolloutId !== undefined && call !== undefined && call.rolloutId !== rolloutId) {
    throw new FulgurError("ERR_INVALID_REQUEST", `call ${callId ?? ""} is not of rollout ${rolloutId}; leave one out`);
  }
  const wanted = rolloutId ?? call?.rolloutId ?? "";
  const target = await readFeedbackTarget(db, tenantId, wanted);
  if (target === undefined) {
    throw new FulgurError("ERR_NOT_FOUND", `there is no rollout ${wanted}; it may be older than what is kept`);
  }
  return { target, attempt: call?.attempt ?? target.rollout.attempt, callId: recordId ?? null };
}

/** Keeps feedback, or says why it does not count. Repeatable: feedback under the same key is the same feedback. */
export async function takeFeedback(
  deps: FeedbackDeps,
  about: FeedbackAbout,
  {
    input,
    settings = DEFAULT_SETTINGS,
  }: { readonly input: FeedbackInput; readonly settings?: FeedbackSettings | undefined },
): Promise<FeedbackTaken> {
  const { target, attempt, callId } = about;
  const { rollout, lastAt } = target;
  const reason = refusalOf(target, settings, deps.now);
  const refused: FeedbackTaken = {
    accepted: reason === null,
    rewardId: null,
    reason,
    message: reason === null ? null : REASONS[reason],
    windowHours: reason === "too_late" ? settings.feedback.window_hours : null,
    lastAt: reason === "too_late" ? lastAt : null,
  };
  if (reason !== null && reason !== "already_trained") return refused;
  const { value, name, key, comment } = input;
  const ref = { tenantId: rollout.tenantId, rolloutId: rollout.id, attempt };
  const said = comment === undefined ? undefined : redact(comment, settings.live?.redact ?? []).text;
  const rewardId = await transact(
    deps.writer,
    giveFeedback(
      {
        ...ref,
        id: newId("reward"),
        // Prefixed, or a client's key could take the place of another source's.
        key: `feedback:${rollout.id}:${key ?? `${attempt}:${callId ?? ""}:${name}`}`,
        callId,
        source: "feedback",
        name,
        value,
        detail: said === undefined ? null : { comment: said },
        createdAt: deps.now,
      },
      ref,
    ),
  );
  return { ...refused, rewardId };
}

const REASONS: Readonly<Record<FeedbackRefusal, string>> = {
  too_late: "the attribution window is over; the agent's setting feedback.window_hours makes it longer",
  not_eligible: "this rollout takes no feedback: see the agent's setting feedback.modes, and whether it ran to an end",
  already_trained: "a batch has taken this rollout; the feedback is kept and does not change what was trained",
  deleted: "the rollout's content was deleted",
};

/** Why feedback does not count now, or null. */
export function refusalOf(
  { rollout, lastAt, inBatch }: FeedbackTarget,
  { feedback }: FeedbackSettings,
  now: number,
): FeedbackRefusal | null {
  if (rollout.dropReason === "deleted") return "deleted";
  if (!feedback.modes.includes(rollout.mode)) return "not_eligible";
  if (rollout.status !== "finished" && rollout.status !== "running") return "not_eligible";
  if (now - lastAt > feedback.window_hours * 3_600_000) return "too_late";
  return rollout.disposition === "trained" || (inBatch && rollout.disposition === null) ? "already_trained" : null;
}

/** The record's id of an answer in any dialect: `resp_<key>`, `msg_<key>`, an item's `fc_<key>_2` are all of `ca_<key>`. */
function recordOf(answerId: string): string {
  const key = /^[a-z]+_([0-9a-f]{32})(?:_\d{1,4})?$/.exec(answerId)?.[1];
  return key === undefined ? answerId : `ca_${key}`;
}
