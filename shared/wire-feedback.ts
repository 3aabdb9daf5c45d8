import * as z from "zod";
import { agentNameSchema, agentSettingsSchema } from "#shared/agent-settings.ts";
import { accepted, answered } from "#shared/wire.ts";

/**
 * The wire of what comes after a call: tool results, feedback, rewards computed anew, and a subject's deletion.
 *
 * | route | scope | body → answer |
 * |---|---|---|
 * | POST   /v1/rollouts/:id/tool-results | its own token, agent, trainer | ToolResultInput → ToolResultTaken |
 * | POST   /v1/feedback                  | its own token, agent, trainer | FeedbackInput → FeedbackTaken |
 * | POST   /v1/rewards/recompute         | trainer | RecomputeInput → Recomputed (a page) |
 * | DELETE /v1/subjects/:id              | admin   | → SubjectDeleted |
 */

const id = z.string().min(1).max(128);

/** What became of one tool call, told by whoever ran the tool: its result, judged by the tool's rules, or a plain yes or no. */
export const toolResultInputSchema = accepted({
  toolCallId: z.string().min(1).max(256),
  tool: z.string().min(1).max(256),
  result: z.string().max(1_000_000).optional(),
  succeeded: z.boolean().optional(),
});
export type ToolResultInput = z.infer<typeof toolResultInputSchema>;

/** `created` is false where the tool earns nothing (`reward_id` null then), or its call's outcome was known already. */
export const toolResultTakenSchema = answered({
  rewardId: z.string().nullable(),
  created: z.boolean(),
  succeeded: z.boolean(),
});
export type ToolResultTaken = z.infer<typeof toolResultTakenSchema>;

export const feedbackInputSchema = accepted({
  rolloutId: id.optional(),
  /** The id of one of its answers, in whichever dialect: `ca_…`, `resp_…`, `msg_…`. */
  callId: id.optional(),
  value: z.number().min(-1e6).max(1e6),
  name: z.string().min(1).max(128).default("feedback"),
  /** Feedback under the same key is the same feedback, and its first value stays; default: rollout, call and name. */
  key: z.string().min(1).max(200).optional(),
  comment: z.string().max(2000).optional(),
});
export type FeedbackInput = z.infer<typeof feedbackInputSchema>;

/**
 * Why feedback does not count. `too_late`: the attribution window is over; `not_eligible`: the agent takes none for such
 * rollouts, or this one never ran to an end; `already_trained`: a batch has taken it (the feedback is kept all the same);
 * `deleted`: its content is gone.
 */
export const FEEDBACK_REFUSALS = ["too_late", "not_eligible", "already_trained", "deleted"] as const;
export type FeedbackRefusal = (typeof FEEDBACK_REFUSALS)[number];

export const feedbackTakenSchema = answered({
  accepted: z.boolean(),
  /** Null where nothing was kept. */
  rewardId: z.string().nullable(),
  reason: z.enum(FEEDBACK_REFUSALS).nullable(),
  message: z.string().nullable(),
  /** With `too_late`: the window, and the time that it began at (milliseconds since the epoch). */
  windowHours: z.number().nullable(),
  lastAt: z.number().nullable(),
});
export type FeedbackTaken = z.infer<typeof feedbackTakenSchema>;

/** Of an agent's settings, those that rewards come from; they hold in place of the agent's own for this once. */
const rewardSettingsSchema = z
  .strictObject({
    tools: z.json().optional(),
    alpha: z.json().optional(),
    evaluator: z.json().optional(),
    correctness_share: z.json().optional(),
  })
  .transform((given, context) => {
    const parsed = agentSettingsSchema.safeParse(given);
    if (!parsed.success) {
      for (const { path, message } of parsed.error.issues) context.addIssue({ code: "custom", path, message });
      return z.NEVER;
    }
    const { tools, success, alpha, evaluator, correctnessShare } = parsed.data;
    return {
      ...(given.tools === undefined ? {} : { tools, success }),
      ...(given.alpha === undefined ? {} : { alpha }),
      ...(evaluator === undefined ? {} : { evaluator }),
      ...(given.correctness_share === undefined ? {} : { correctnessShare }),
    };
  });

/** Finished rollouts, oldest first, a page at a time: of one run, of one agent, by id, or all; `since` in milliseconds since the epoch. */
export const recomputeInputSchema = accepted({
  runId: id.optional(),
  rolloutIds: z.array(id).min(1).max(200).optional(),
  agent: agentNameSchema.optional(),
  since: z.int().min(0).optional(),
  settings: rewardSettingsSchema.prefault({}),
  /** Where the page before ended; its `next_after`. */
  after: z.string().max(200).optional(),
  limit: z.int().min(1).max(200).default(50),
  dryRun: z.boolean().default(false),
  /** Rewards of rollouts that were trained on are changed too; they stay trained. */
  includeTrained: z.boolean().default(false),
});
export type RecomputeInput = z.infer<typeof recomputeInputSchema>;
/** {@link RecomputeInput} as a client writes it. */
export type RecomputeBody = Partial<Omit<RecomputeInput, "settings">> & {
  readonly settings?: z.input<typeof rewardSettingsSchema>;
};

const sumSchema = z.object({ rewarded: z.number(), sum: z.number() });
export const recomputedSchema = answered({
  scanned: z.number(),
  /** With `dry_run`: that would be changed. */
  changed: z.number(),
  /** Left alone because a batch has them. */
  skipped: z.number(),
  /** Rollouts whose judge could not judge; they are as they were. The first few. */
  failed: z.array(z.object({ rollout_id: z.string(), error: z.string() })),
  failures: z.number(),
  /** How many of those that were looked at have a reward, and its sum. */
  before: sumSchema,
  after: sumSchema,
  /** Null where this was the last page. */
  nextAfter: z.string().nullable(),
});
export type Recomputed = z.infer<typeof recomputedSchema>;

export const subjectDeletedSchema = answered({
  subject: z.string(),
  /** How many rollouts' content was deleted. */
  rollouts: z.number(),
  /** Of these, how many were taken out before they could be trained on. */
  dropped: z.number(),
  /** Batches that had claimed some of them and were under way: a trainer may have read those already. */
  claimed: z.array(z.object({ batch_id: z.string(), run_id: z.string(), step: z.number(), rollouts: z.number() })),
  /** What was trained on before: the versions that came of it, and all that descend from them, have learned from it. */
  trained: z.array(
    z.object({
      batch_id: z.string(),
      run_id: z.string(),
      policy: z.string(),
      version: z.number().nullable(),
      rollouts: z.number(),
    }),
  ),
});
export type SubjectDeleted = z.infer<typeof subjectDeletedSchema>;
