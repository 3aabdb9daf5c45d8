import * as z from "zod";
import { evaluatorSchema } from "#shared/agent-settings.ts";
import {
  MODES,
  DROP_REASONS,
  REWARD_SOURCES,
  SCOPES,
  SPLITS,
  ROLLOUT_STATUSES,
  ATTEMPT_STATUSES,
  BATCH_STATUSES,
  DISPOSITIONS,
} from "#shared/words.ts";

/**
 * The edge's own HTTP interface (the LLM dialects are not here): what each route takes and gives.
 * JSON is snake_case; the parsed types are camelCase. The schema is the type.
 *
 * | route | scope | body → answer |
 * |---|---|---|
 * | GET  /healthz                            | –       | → { ok } |
 * | GET  /.well-known/jwks.json              | –       | → public keys |
 * | POST /v1/tokens                          | admin   | TokenRequest → TokenGrant |
 * | POST /v1/tokens/revoke                   | admin   | { jti, expires_at } → { ok } |
 * | POST /v1/tasks                           | trainer | { tasks: TaskInput[] } → { created } |
 * | POST /v1/rollouts                        | trainer | { rollouts: RolloutInput[] } → { ids } |
 * | GET  /v1/rollouts?limit&after&mode&status&run_id | read | → { rollouts: RolloutView[], next_after } newest first; several statuses with commas |
 * | GET  /v1/rollouts/:id                    | read or its own token | → RolloutDetail |
 * | POST /v1/rollouts/:id/finish             | its own token, trainer | { result?, error?, reward? } → RolloutView |
 * | POST /v1/rollouts/:id/cancel             | its own token, trainer | → RolloutView |
 * | POST /v1/rollouts/drop                   | trainer | { ids, reason } → { dropped } |
 * | POST /v1/rewards                         | its own token, trainer | RewardInput → { id, created } |
 * | POST /v1/policies                        | trainer | PolicyInput → { ok } (repeatable) |
 * | GET  /v1/policies                        | read    | → { policies: [{ name, route_version, versions: [...] }] } |
 * | POST /v1/policies/:name/route            | trainer | { version } → { ok } |
 * | POST /v1/policies/:name/retire           | trainer | { versions } → { retired } (repeatable; those in use stay) |
 * | POST /v1/runs                            | trainer | RunInput → { ok } (repeatable; later fields win) |
 * | GET  /v1/runs                            | read    | → { runs: RunView[] } newest first |
 * | GET  /v1/runs/:id/steps?since            | read    | → { steps: TrainStepView[] } those after a step, counted from 0 |
 * | POST /v1/runs/:id/metrics                | trainer | { points: MetricPoint[] } → { ok } |
 * | POST /v1/batches/claim                   | trainer | BatchClaim → { batch_id, rollout_ids } |
 * | POST /v1/batches/:id/trained             | trainer | BatchTrained → { ok } (repeatable) |
 * | POST /v1/batches/:id/abandon             | trainer | { reason } → { ok } |
 * | GET  /v1/usage                           | read    | → { usage: [...] } |
 * | GET  /v1/session                         | loopback only, where configured | → { token, expires_at } a `read` token for the page |
 *
 * Errors everywhere: `{ error: { message, type, param, code } }`.
 */

/** Keys of one object from snake_case to camelCase; values are left as they are. */
function camelKeys(value: unknown): unknown {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, field]) => [
      key.replaceAll(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase()),
      field,
    ]),
  );
}

/** Keys of one row from camelCase to snake_case, for answers; values are left as they are. */
export function snakeKeys(row: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(row).map(([key, field]) => [
      key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      field,
    ]),
  );
}

/** An object whose JSON keys are snake_case and whose parsed keys are camelCase; unknown keys fail. */
export function accepted<T extends z.ZodRawShape>(shape: T) {
  return z.preprocess(camelKeys, z.strictObject(shape));
}

/** As {@link accepted}, for what another part answers: unknown keys are ignored. */
export function answered<T extends z.ZodRawShape>(shape: T) {
  return z.preprocess(camelKeys, z.object(shape));
}

const id = z.string().min(1).max(128);
const agentName = z
  .string()
  .regex(/^[a-z0-9][a-z0-9-]{0,62}$/, "an agent's name is lower-case letters, digits and dashes");
const policyName = z
  .string()
  .regex(/^[a-z0-9][a-z0-9._-]{0,62}$/, "a policy's name is lower-case letters, digits, dots and dashes");
const pin = z
  .string()
  .regex(/^[a-z0-9][a-z0-9._-]{0,62}@\d{1,9}$/, "a pin is written policy@version, such as flight@13");
const version = z.int().min(0).max(999_999_999);

const patternJudgeSchema = z.strictObject({
  answer_pattern: z.string().max(500),
  format_pattern: z.string().max(500),
  expected: z.string().max(10_000),
});
const expected = z.json().default(null);
const [exactMatch, tokenF1, numeric, jsonSchema, sql, llmJudge, worker] = evaluatorSchema.options;
const evaluatorJudgeSchema = z.discriminatedUnion("type", [
  exactMatch.extend({ expected }),
  tokenF1.extend({ expected }),
  numeric.extend({ expected }),
  jsonSchema.extend({ expected }),
  sql.extend({ expected }),
  llmJudge.extend({ expected }),
  worker.extend({ expected }),
]);
/** Patterns, an evaluator with its `type`, or `expected` alone for the evaluator of the task's agent. */
export const judgeSchema = z.union([patternJudgeSchema, evaluatorJudgeSchema, z.strictObject({ expected: z.json() })]);

export const taskInputSchema = accepted({
  id,
  agent: agentName,
  split: z.enum(SPLITS),
  input: z.json(),
  judge: judgeSchema.nullable().default(null),
});
export const tasksBodySchema = accepted({ tasks: z.array(taskInputSchema).min(1).max(1000) });
export type TaskInput = z.infer<typeof taskInputSchema>;

export const rolloutInputSchema = accepted({
  id,
  taskId: id,
  agent: agentName,
  mode: z.enum(MODES),
  groupId: id.nullable().default(null),
  runId: id.nullable().default(null),
  pin: pin.nullable().default(null),
  maxAttempts: z.int().min(1).max(10).default(3),
});
export const rolloutsBodySchema = accepted({ rollouts: z.array(rolloutInputSchema).min(1).max(1000) });
export type RolloutInput = z.infer<typeof rolloutInputSchema>;

export const capsSchema = accepted({
  maxCalls: z.int().min(1).max(10_000).default(64),
  maxTokens: z.int().min(1).max(10_000_000).default(200_000),
});
export type Caps = z.infer<typeof capsSchema>;

/** `POST /v1/tokens`: with an agent and a mode, a new self-started rollout and its token; with scopes, a token of those. */
export const tokenRequestSchema = accepted({
  agent: agentName.optional(),
  mode: z.enum(MODES).optional(),
  scopes: z.array(z.enum(SCOPES)).min(1).optional(),
  pin: pin.nullable().default(null),
  ttlSeconds: z.int().min(1).max(900).default(900),
  caps: capsSchema.optional(),
});
export type TokenRequest = z.infer<typeof tokenRequestSchema>;
export const tokenGrantSchema = answered({
  token: z.string(),
  rolloutId: z.string().nullable(),
  expiresAt: z.number(),
});
export type TokenGrant = z.infer<typeof tokenGrantSchema>;

export const finishBodySchema = accepted({
  result: z.string().max(1_000_000).nullable().default(null),
  error: z.string().max(10_000).nullable().default(null),
  /** An explicit terminal reward in place of the judge's. */
  reward: z.number().min(-1e6).max(1e6).nullable().default(null),
});
export type FinishBody = z.infer<typeof finishBodySchema>;

export const dropBodySchema = accepted({ ids: z.array(id).min(1).max(5000), reason: z.enum(DROP_REASONS) });

export const rewardInputSchema = accepted({
  rolloutId: id.optional(),
  callId: id.nullable().default(null),
  source: z.enum(REWARD_SOURCES).default("explicit"),
  name: z.string().min(1).max(128),
  value: z.number().min(-1e6).max(1e6),
  /** Default: source, name, rollout, attempt and call; a second reward under the same key is the same reward. */
  key: z.string().min(1).max(300).optional(),
});
export type RewardInput = z.infer<typeof rewardInputSchema>;

export const policyInputSchema = accepted({
  name: policyName,
  artifact: z.string().min(1).max(2000),
  sha256: z.string().length(64),
  kind: z.enum(["base", "adapter", "weights"]).default("base"),
});
export type PolicyInput = z.infer<typeof policyInputSchema>;
export const routeBodySchema = accepted({ version });
/** Versions whose artifacts are about to be removed; the answer names those of them that are retired. */
export const retireBodySchema = accepted({ versions: z.array(version).min(1).max(1000) });

export const runInputSchema = accepted({
  id,
  policy: policyName,
  agent: agentName,
  config: z.json(),
  evalBefore: z.json().nullable().optional(),
  evalAfter: z.json().nullable().optional(),
  finishedAt: z.int().nullable().optional(),
});
export type RunInput = z.infer<typeof runInputSchema>;

/** `GET /v1/runs/:id/steps`: only the steps after `since`, counted from 0. */
export const stepsQuerySchema = z.strictObject({
  since: z.coerce
    .number()
    .int()
    .min(-1)
    .max(999_999_999)
    .optional()
    .describe("only the steps after this one, counted from 0; the last one gains metrics until the next begins"),
});

export const metricPointSchema = accepted({
  step: z.int().min(0),
  name: z.string().min(1).max(128),
  value: z.number(),
});
export const metricsBodySchema = accepted({ points: z.array(metricPointSchema).min(1).max(1000) });

/**
 * Claims up to `groups` complete groups (every rollout of the group has ended) of this run's train rollouts,
 * oldest first, in one transaction. Repeatable by `batch_id`: claiming again with the same id adds more groups
 * (refill), and the answer names everything the batch holds that is not dropped, so a lost answer heals itself. Failed, cancelled, dropped and already claimed rollouts are not taken; a group with fewer than two
 * finished rollouts is not taken.
 */
export const batchClaimSchema = accepted({
  batchId: id,
  runId: id,
  policy: policyName,
  step: z.int().min(0),
  groups: z.int().min(1).max(1000),
  /** In place of the run's own: live rollouts of an agent, in groups of so many (shared/store/live-groups.ts). */
  live: accepted({
    agent: agentName,
    groupSize: z.int().min(1).max(256),
    since: z.int().min(0),
    versions: z.array(version).min(1).max(64),
  }).optional(),
});
export type BatchClaim = z.infer<typeof batchClaimSchema>;
export const claimedSchema = answered({ batchId: z.string(), rolloutIds: z.array(z.string()) });

/** In one transaction: batch trained, its undropped rollouts `trained`, the version registered with its lineage, the step's metrics kept. */
export const batchTrainedSchema = accepted({
  version,
  parentVersion: version,
  kind: z.enum(["adapter", "weights"]),
  artifact: z.string().min(1).max(2000),
  sha256: z.string().length(64),
  metrics: z.record(z.string(), z.number()),
});
export type BatchTrained = z.infer<typeof batchTrainedSchema>;
export const abandonBodySchema = accepted({ reason: z.enum(DROP_REASONS) });

// Answers ---------------------------------------------------------------------------------------------------------

export const rolloutViewSchema = answered({
  id: z.string(),
  runId: z.string().nullable(),
  taskId: z.string().nullable(),
  groupId: z.string().nullable(),
  agent: z.string(),
  mode: z.enum(MODES),
  pin: z.string().nullable(),
  status: z.enum(ROLLOUT_STATUSES),
  attempt: z.number(),
  reward: z.number().nullable(),
  outcome: z
    .object({
      status: z.number(),
      terminal: z.number(),
      correctness: z.number(),
      format: z.number(),
      tools: z.array(z.string()),
    })
    .nullable(),
  result: z.string().nullable(),
  error: z.string().nullable(),
  disposition: z.enum(DISPOSITIONS).nullable(),
  dropReason: z.enum(DROP_REASONS).nullable(),
  createdAt: z.number(),
  startedAt: z.number().nullable(),
  finishedAt: z.number().nullable(),
});
export type RolloutView = z.infer<typeof rolloutViewSchema>;

export const callViewSchema = answered({
  id: z.string(),
  attempt: z.number(),
  role: z.string(),
  dialect: z.string(),
  modelAsked: z.string(),
  /** `flight@13`, or null where no policy answered. */
  version: z.string().nullable(),
  request: z.json(),
  response: z.json().nullable(),
  promptTokens: z.number(),
  completionTokens: z.number(),
  promptTokenIds: z.array(z.number()).nullable(),
  responseTokenIds: z.array(z.number()).nullable(),
  behaviourLogprobs: z.array(z.number()).nullable(),
  /** Text of each response token as the upstream's logprobs name them; null where it gave none. */
  responseTokens: z.array(z.string()).nullable(),
  finishReason: z.string().nullable(),
  httpStatus: z.number(),
  error: z.string().nullable(),
  trainable: z.boolean(),
  firstByteMs: z.number().nullable(),
  latencyMs: z.number(),
  createdAt: z.number(),
});
export type CallView = z.infer<typeof callViewSchema>;

export const rewardViewSchema = answered({
  id: z.string(),
  callId: z.string().nullable(),
  attempt: z.number(),
  source: z.enum(REWARD_SOURCES),
  name: z.string(),
  value: z.number(),
  createdAt: z.number(),
});
export type RewardView = z.infer<typeof rewardViewSchema>;

export const attemptViewSchema = answered({
  attempt: z.number(),
  status: z.enum(ATTEMPT_STATUSES),
  error: z.string().nullable(),
  startedAt: z.number(),
  finishedAt: z.number().nullable(),
});

/** `batch` is the batch that claimed the rollout, whatever became of it there. */
export const rolloutDetailSchema = answered({
  rollout: rolloutViewSchema,
  attempts: z.array(attemptViewSchema),
  calls: z.array(callViewSchema),
  rewards: z.array(rewardViewSchema),
  batch: z.object({ id: z.string(), step: z.number(), status: z.enum(BATCH_STATUSES) }).nullable(),
});
export type RolloutDetail = z.infer<typeof rolloutDetailSchema>;

export const policyVersionViewSchema = answered({
  version: z.number(),
  parentVersion: z.number().nullable(),
  kind: z.enum(["base", "adapter", "weights"]),
  artifact: z.string(),
  sha256: z.string(),
  runId: z.string().nullable(),
  batchId: z.string().nullable(),
  step: z.number().nullable(),
  createdAt: z.number(),
  /** Since then its artifact is removed, and it can be neither routed nor pinned. */
  retiredAt: z.number().nullable(),
});
export type PolicyVersionView = z.infer<typeof policyVersionViewSchema>;

/** Versions newest first. */
export const policyViewSchema = answered({
  name: z.string(),
  routeVersion: z.number(),
  createdAt: z.number(),
  versions: z.array(policyVersionViewSchema),
});
export type PolicyView = z.infer<typeof policyViewSchema>;

export const runViewSchema = answered({
  id: z.string(),
  policy: z.string(),
  agent: z.string(),
  config: z.json(),
  evalBefore: z.json().nullable(),
  evalAfter: z.json().nullable(),
  createdAt: z.number(),
  finishedAt: z.number().nullable(),
});
export type RunView = z.infer<typeof runViewSchema>;

export const trainStepViewSchema = answered({
  step: z.number(),
  batchId: z.string(),
  policy: z.string(),
  version: z.number(),
  metrics: z.record(z.string(), z.number()),
  createdAt: z.number(),
});
export type TrainStepView = z.infer<typeof trainStepViewSchema>;

export const errorBodySchema = z.object({
  error: z.object({ message: z.string(), type: z.string(), param: z.string().nullable(), code: z.string().nullable() }),
});
