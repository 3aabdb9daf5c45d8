import { sql } from "drizzle-orm";
import { customType, index, integer, primaryKey, real, sqliteTable, text, uniqueIndex } from "drizzle-orm/sqlite-core";
import type { AgentSettingsInput, Evaluator } from "#shared/agent-settings.ts";
import type {
  KeyScope,
  Mode,
  RewardSource,
  RolloutStatus,
  AttemptStatus,
  BatchStatus,
  Disposition,
  DropReason,
  Split,
} from "#shared/words.ts";

/**
 * The store's tables (libSQL). SQL is snake_case, TypeScript camelCase; this file and wire.ts convert.
 * Times are integer milliseconds since the epoch. Token ids and logprobs are packed blobs (packed.ts).
 * Indexes are few on purpose: Turso bills every row written, index entries too.
 */

/** Bytes; libSQL's clients hand blobs back as ArrayBuffer. */
const bytes = customType<{ data: Uint8Array; driverData: ArrayBuffer | Uint8Array }>({
  dataType: () => "blob",
  toDriver: (value) => value,
  fromDriver: (value) => (value instanceof Uint8Array ? value : new Uint8Array(value)),
});

const json = <T>(name: string) => text(name, { mode: "json" }).$type<T>();
const time = (name: string) => integer(name);

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** How a task's result is judged: by patterns, by an evaluator, or by the agent's own evaluator against what is expected. */
export type Judge = PatternJudge | EvaluatorJudge | ExpectedJudge;

/** `correctness` is an exact match of the extracted answer, `format` a whole match. */
export interface PatternJudge {
  /** Regular expression with one group that extracts the answer from the agent's result text. */
  readonly answer_pattern: string;
  /** Regular expression that the whole result text must match. */
  readonly format_pattern: string;
  readonly expected: string;
}

/** What is expected is the evaluator's own affair: a text, a number, a list of texts of which any will do; null is nothing. */
export type EvaluatorJudge = Evaluator & { readonly expected: Json };

export interface ExpectedJudge {
  readonly expected: Json;
}

/** What was seen of a finished attempt: the parts of its reward, and the tools it called, in order. */
export interface Outcome {
  /** Σ_tools w·mean(±1) / Σ w over the agent's tools, in [−1, 1]. */
  readonly status: number;
  /** 0.9·correctness + 0.1·format. */
  readonly terminal: number;
  readonly correctness: number;
  readonly format: number;
  readonly tools: readonly string[];
}

export interface TenantSettings {
  /** Whether live calls are answered while the store is away. */
  readonly fail_open: boolean;
  /** Live rollouts older than this are deleted; kept for good where absent. */
  readonly retention_days?: number;
  /** Where calls are exported to as OTLP/HTTP; the name of the edge's variable that holds the collector's key, if it needs one. */
  readonly otlp_export?: { readonly url: string; readonly key_env?: string };
  /** What may be spent a calendar month (UTC), in the price list's currency. */
  readonly monthly_budget?: number;
}

export const tenants = sqliteTable("tenants", {
  id: text("id").primaryKey(),
  name: text("name").notNull(),
  settings: json<TenantSettings>("settings").notNull(),
  createdAt: time("created_at").notNull(),
});

export const policies = sqliteTable(
  "policies",
  {
    tenantId: text("tenant_id").notNull(),
    name: text("name").notNull(),
    /** The version that calls get now; changed only after inference has proven it. */
    routeVersion: integer("route_version").notNull(),
    createdAt: time("created_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.name] })],
);

export const policyVersions = sqliteTable(
  "policy_versions",
  {
    tenantId: text("tenant_id").notNull(),
    policy: text("policy").notNull(),
    version: integer("version").notNull(),
    parentVersion: integer("parent_version"),
    kind: text("kind", { enum: ["base", "adapter", "weights"] }).notNull(),
    /** Folder or URI that inference loads. */
    artifact: text("artifact").notNull(),
    /** Of the artifact's manifest. */
    sha256: text("sha256").notNull(),
    runId: text("run_id"),
    batchId: text("batch_id"),
    step: integer("step"),
    createdAt: time("created_at").notNull(),
    /** From then on nothing may be routed or pinned to it: its artifact is removed. */
    retiredAt: time("retired_at"),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.policy, t.version] })],
);

export const tasks = sqliteTable(
  "tasks",
  {
    tenantId: text("tenant_id").notNull(),
    id: text("id").notNull(),
    agent: text("agent").notNull(),
    split: text("split").$type<Split>().notNull(),
    /** What the agent is given; its shape is the agent's own. */
    input: json<Json>("input").notNull(),
    judge: json<Judge>("judge"),
    createdAt: time("created_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.id] })],
);

/** One training or evaluation session of `npm start`; metrics and batches belong to it. */
export const runs = sqliteTable("runs", {
  id: text("id").primaryKey(),
  tenantId: text("tenant_id").notNull(),
  policy: text("policy").notNull(),
  agent: text("agent").notNull(),
  config: json<Json>("config").notNull(),
  evalBefore: json<Json>("eval_before"),
  evalAfter: json<Json>("eval_after"),
  createdAt: time("created_at").notNull(),
  finishedAt: time("finished_at"),
});

export const rollouts = sqliteTable(
  "rollouts",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    runId: text("run_id"),
    /** Null where the agent started by itself (a token from POST /v1/tokens). */
    taskId: text("task_id"),
    groupId: text("group_id"),
    agent: text("agent").notNull(),
    mode: text("mode").$type<Mode>().notNull(),
    /** `flight@13`: answers come from this version whatever the route says (evaluations). */
    pin: text("pin"),
    status: text("status").$type<RolloutStatus>().notNull(),
    /** Number of the newest attempt; 0 before the first. */
    attempt: integer("attempt").notNull().default(0),
    maxAttempts: integer("max_attempts").notNull(),
    /** A retry waits until then. */
    notBefore: time("not_before").notNull().default(0),
    leaseUntil: time("lease_until"),
    result: text("result"),
    error: text("error"),
    reward: real("reward"),
    outcome: json<Outcome>("outcome"),
    disposition: text("disposition").$type<Disposition>(),
    dropReason: text("drop_reason").$type<DropReason>(),
    /** The session that a live rollout is, in its agent's own words. */
    sessionId: text("session_id"),
    /** Whose data it is, for deletion. */
    subjectId: text("subject_id"),
    /** The key that opened it, where one did. */
    keyId: text("key_id"),
    createdAt: time("created_at").notNull(),
    startedAt: time("started_at"),
    finishedAt: time("finished_at"),
  },
  (t) => [
    index("rollouts_tenant_created").on(t.tenantId, t.createdAt, t.id),
    index("rollouts_status").on(t.status, t.agent, t.createdAt),
    // Partial: SQLite takes it only for a query that repeats its condition.
    index("rollouts_undisposed")
      .on(t.runId, t.groupId)
      .where(sql`${t.disposition} is null`),
    index("rollouts_run").on(t.runId, t.mode, t.status),
    // Live rollouts that may still become training data.
    index("rollouts_live_free")
      .on(t.tenantId, t.agent, t.createdAt, t.id)
      .where(
        sql`${t.mode} = 'live' and ${t.status} = 'finished' and ${t.reward} is not null and ${t.disposition} is null and ${t.runId} is null`,
      ),
    index("rollouts_subject")
      .on(t.tenantId, t.subjectId)
      .where(sql`${t.subjectId} is not null`),
  ],
);

export const attempts = sqliteTable(
  "attempts",
  {
    rolloutId: text("rollout_id").notNull(),
    attempt: integer("attempt").notNull(),
    tenantId: text("tenant_id").notNull(),
    status: text("status").$type<AttemptStatus>().notNull(),
    startedAt: time("started_at").notNull(),
    finishedAt: time("finished_at"),
    error: text("error"),
  },
  (t) => [primaryKey({ columns: [t.rolloutId, t.attempt] })],
);

export const calls = sqliteTable(
  "calls",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    rolloutId: text("rollout_id").notNull(),
    attempt: integer("attempt").notNull(),
    role: text("role").notNull().default("main"),
    dialect: text("dialect").notNull(),
    /** The model name the agent asked for. */
    modelAsked: text("model_asked").notNull(),
    policy: text("policy"),
    policyVersion: integer("policy_version"),
    /** The frozen upstream that answered, where no policy did. */
    provider: text("provider"),
    /** The name inference answered under; equals `policy@policyVersion` or the call is an error. */
    modelAnswered: text("model_answered"),
    request: json<Json>("request").notNull(),
    /** The assistant's message as the agent got it. */
    response: json<Json>("response"),
    promptTokens: integer("prompt_tokens").notNull().default(0),
    completionTokens: integer("completion_tokens").notNull().default(0),
    /** The earlier call of the attempt whose prompt and response begin this prompt; those token ids are kept there alone. */
    prefixCallId: text("prefix_call_id"),
    /** How many tokens of that call's prompt and response this prompt begins with; 0 where it stands alone. */
    prefixTokens: integer("prefix_tokens").notNull().default(0),
    /** The prompt's token ids after those `prefix_tokens`. */
    promptTokenIds: bytes("prompt_token_ids"),
    responseTokenIds: bytes("response_token_ids"),
    /** Of the distribution sampled from, float32, one per response token id. */
    behaviourLogprobs: bytes("behaviour_logprobs"),
    /** The sampled tokens' texts as the upstream's logprobs name them, so that a page can show them without a tokenizer. */
    responseTokens: json<string[]>("response_tokens"),
    temperature: real("temperature"),
    finishReason: text("finish_reason"),
    httpStatus: integer("http_status").notNull(),
    /** `client_disconnected`, or the upstream's failure. */
    error: text("error"),
    /** 1 where RL can train on it: token ids and logprobs are there. */
    trainable: integer("trainable", { mode: "boolean" }).notNull(),
    firstByteMs: real("first_byte_ms"),
    latencyMs: real("latency_ms").notNull(),
    upstreamAttempts: integer("upstream_attempts").notNull().default(1),
    createdAt: time("created_at").notNull(),
  },
  (t) => [index("calls_rollout").on(t.rolloutId, t.attempt, t.createdAt)],
);

export const spans = sqliteTable(
  "spans",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    rolloutId: text("rollout_id").notNull(),
    attempt: integer("attempt").notNull(),
    traceId: text("trace_id"),
    parentId: text("parent_id"),
    name: text("name").notNull(),
    attributes: json<Json>("attributes").notNull(),
    startedAt: time("started_at").notNull(),
    finishedAt: time("finished_at"),
  },
  (t) => [index("spans_rollout").on(t.rolloutId)],
);

export const rewards = sqliteTable(
  "rewards",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    /** Idempotency key: the same signal seen twice is one reward. `air:<rollout>:<attempt>:<tool_call_id>`, for example. */
    key: text("key").notNull(),
    rolloutId: text("rollout_id").notNull(),
    attempt: integer("attempt").notNull(),
    callId: text("call_id"),
    source: text("source").$type<RewardSource>().notNull(),
    /** The tool's name, the evaluator's, or the client's own. */
    name: text("name").notNull(),
    value: real("value").notNull(),
    detail: json<Json>("detail"),
    createdAt: time("created_at").notNull(),
  },
  (t) => [uniqueIndex("rewards_key").on(t.tenantId, t.key), index("rewards_rollout").on(t.rolloutId)],
);

export const batches = sqliteTable(
  "batches",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    runId: text("run_id").notNull(),
    policy: text("policy").notNull(),
    step: integer("step").notNull(),
    status: text("status").$type<BatchStatus>().notNull(),
    /** The version it was trained into. */
    version: integer("version"),
    createdAt: time("created_at").notNull(),
    trainedAt: time("trained_at"),
  },
  // A step may be claimed again after its batch was abandoned.
  (t) => [
    uniqueIndex("batches_open_step")
      .on(t.runId, t.step)
      .where(sql`${t.status} <> 'abandoned'`),
    index("batches_run").on(t.runId, t.step),
    index("batches_claimed")
      .on(t.tenantId, t.policy)
      .where(sql`${t.status} = 'claimed'`),
  ],
);

/** The unique key that makes "at most one batch" true. */
export const batchEntries = sqliteTable(
  "batch_entries",
  {
    rolloutId: text("rollout_id").primaryKey(),
    batchId: text("batch_id").notNull(),
    tenantId: text("tenant_id").notNull(),
  },
  (t) => [index("batch_entries_batch").on(t.batchId)],
);

export const trainSteps = sqliteTable(
  "train_steps",
  {
    runId: text("run_id").notNull(),
    step: integer("step").notNull(),
    tenantId: text("tenant_id").notNull(),
    batchId: text("batch_id").notNull(),
    policy: text("policy").notNull(),
    version: integer("version").notNull(),
    /** Metric name → value; names are explained in docs/METRICS.md. */
    metrics: json<Record<string, number>>("metrics").notNull(),
    createdAt: time("created_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.runId, t.step] })],
);

/** Points that are not of a train step: evaluations, memory, queue depth. */
export const metrics = sqliteTable(
  "metrics",
  {
    runId: text("run_id").notNull(),
    step: integer("step").notNull(),
    name: text("name").notNull(),
    tenantId: text("tenant_id").notNull(),
    value: real("value").notNull(),
    createdAt: time("created_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.runId, t.step, t.name] })],
);

export const usage = sqliteTable(
  "usage",
  {
    tenantId: text("tenant_id").notNull(),
    /** `2026-11-21`, UTC. */
    day: text("day").notNull(),
    model: text("model").notNull(),
    mode: text("mode").$type<Mode>().notNull(),
    calls: integer("calls").notNull(),
    promptTokens: integer("prompt_tokens").notNull(),
    completionTokens: integer("completion_tokens").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.day, t.model, t.mode] })],
);

/** Agents that were set up at run time, laid over those of the edge's AGENTS variable. */
export const agents = sqliteTable(
  "agents",
  {
    tenantId: text("tenant_id").notNull(),
    name: text("name").notNull(),
    settings: json<AgentSettingsInput>("settings").notNull(),
    updatedAt: time("updated_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.name] })],
);

/** Frozen upstreams. */
export const providers = sqliteTable(
  "providers",
  {
    tenantId: text("tenant_id").notNull(),
    name: text("name").notNull(),
    baseUrl: text("base_url").notNull(),
    /** The variable that holds its key: the edge's own, or the one that `key_sealed` was read from. */
    keyEnv: text("key_env"),
    /** The key, sealed with the edge's vault key (AES-256-GCM); never in plain text. */
    keySealed: text("key_sealed"),
    updatedAt: time("updated_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.name] })],
);

/** Long-lived keys; only a hash is kept. */
export const keys = sqliteTable(
  "keys",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    /** SHA-256 of the whole key, hex. */
    hash: text("hash").notNull(),
    scope: text("scope").$type<KeyScope>().notNull(),
    /** The one agent that it may call for; any where null. */
    agent: text("agent"),
    label: text("label").notNull(),
    /** Requests a minute; no limit where null. */
    ratePerMinute: integer("rate_per_minute"),
    createdAt: time("created_at").notNull(),
    revokedAt: time("revoked_at"),
  },
  (t) => [index("keys_tenant").on(t.tenantId, t.createdAt)],
);

/** Who minted, revoked, promoted, deleted; written in the transaction of what it tells of. */
export const audit = sqliteTable(
  "audit",
  {
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    /** `key:<id>` or `token:<jti>`. */
    actor: text("actor").notNull(),
    /** noun.verb, such as `key.created`. */
    action: text("action").notNull(),
    /** The id of what it was done to. */
    target: text("target").notNull(),
    detail: json<Json>("detail"),
    createdAt: time("created_at").notNull(),
  },
  (t) => [index("audit_tenant").on(t.tenantId, t.createdAt)],
);

/** A versioned price list: a call costs what its model cost when it was made. */
export const prices = sqliteTable(
  "prices",
  {
    tenantId: text("tenant_id").notNull(),
    /** A policy's name, `provider/model`, or `*` for whatever has no price of its own. */
    model: text("model").notNull(),
    /** From when on it holds, milliseconds since the epoch. */
    validFrom: time("valid_from").notNull(),
    /** For a million tokens, in the tenant's currency. */
    promptPerMillion: real("prompt_per_million").notNull(),
    completionPerMillion: real("completion_per_million").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.model, t.validFrom] })],
);

/** Rewards as they were before a recomputation. */
export const rewardRevisions = sqliteTable(
  "reward_revisions",
  {
    rolloutId: text("rollout_id").notNull(),
    /** 1 is the oldest. */
    revision: integer("revision").notNull(),
    tenantId: text("tenant_id").notNull(),
    reward: real("reward"),
    outcome: json<Outcome>("outcome"),
    /** The rewards' rows that were replaced. */
    rewards: json<Json>("rewards").notNull(),
    replacedAt: time("replaced_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.rolloutId, t.revision] })],
);

/** Tokens revoked before they expire: by `jti`, or every one of a rollout as `rollout:<id>`. */
export const revokedTokens = sqliteTable(
  "revoked_tokens",
  {
    jti: text("jti").notNull(),
    tenantId: text("tenant_id").notNull(),
    expiresAt: time("expires_at").notNull(),
  },
  // With the tenant: else one could keep another from revoking.
  (t) => [primaryKey({ columns: [t.tenantId, t.jti] })],
);

/** How far a tenant's calls have been exported to its collector. */
export const otlpExports = sqliteTable("otlp_exports", {
  tenantId: text("tenant_id").primaryKey(),
  /** Row id of the last call that the collector took. */
  cursor: integer("cursor").notNull(),
  /** Why the last try failed; null where it did not. */
  error: text("error"),
  updatedAt: time("updated_at").notNull(),
});

/** A one-row table that the supervisor's write probe touches: `/health` stays 200 while a wedged server takes no write. */
export const probes = sqliteTable("probes", {
  id: integer("id").primaryKey(),
  touchedAt: time("touched_at")
    .notNull()
    .default(sql`0`),
});
