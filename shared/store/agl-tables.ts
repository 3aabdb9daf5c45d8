import { index, integer, primaryKey, sqliteTable, text, uniqueIndex } from "drizzle-orm/sqlite-core";
import type { Json } from "#shared/tables.ts";

/**
 * What Agent Lightning's REST surface keeps beside this system's own records. Its ids come from clients, so they are
 * unique only within a tenant; a rollout's own number tells it from an earlier one of the same id that was deleted.
 */

export const AGL_STATES = ["queuing", "running", "succeeded", "failed"] as const;
export type AglState = (typeof AGL_STATES)[number];

/** Runner settings as the controller reads them. */
export interface AglConfig {
  readonly timeout_seconds: number;
  readonly local: { readonly agent_class: string | null; readonly env_map: Readonly<Record<string, string>> } | null;
  readonly k8s: { readonly job_template: string | null; readonly require_preloaded_images?: boolean } | null;
}

export const aglRollouts = sqliteTable(
  "agl_rollouts",
  {
    /** Order of creation; never used twice. */
    seq: integer("seq").primaryKey({ autoIncrement: true }),
    tenantId: text("tenant_id").notNull(),
    id: text("id").notNull(),
    /** The rollout of ours that its calls, rewards and usage belong to; its row is made with the first of them. */
    shadowId: text("shadow_id").notNull(),
    input: text("input", { mode: "json" }).$type<Json>(),
    isTrain: integer("is_train", { mode: "boolean" }).notNull(),
    config: text("config", { mode: "json" }).$type<AglConfig>().notNull(),
    metadata: text("metadata", { mode: "json" }).$type<Readonly<Record<string, Json>>>().notNull(),
    /** The input's own name for itself, so that the list of ended rollouts needs no inputs. */
    dataId: text("data_id").notNull(),
    state: text("state").$type<AglState>().notNull(),
    k8sJobName: text("k8s_job_name"),
    lastAttemptId: text("last_attempt_id"),
    errorMessage: text("error_message"),
    /** Changes of the status so far, its creation included. */
    version: integer("version").notNull(),
    createdAt: integer("created_at").notNull(),
    updatedAt: integer("updated_at").notNull(),
  },
  (t) => [
    uniqueIndex("agl_rollouts_id").on(t.tenantId, t.id),
    index("agl_rollouts_state").on(t.tenantId, t.state, t.seq),
  ],
);

/** The order in which rollouts ended. A deleted rollout keeps its place, so that no reader's cursor skips another. */
export const aglTerminals = sqliteTable(
  "agl_terminals",
  {
    tenantId: text("tenant_id").notNull(),
    /** 1, 2, 3, … within the tenant, without gaps. */
    position: integer("position").notNull(),
    rolloutSeq: integer("rollout_seq").notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.position] }),
    // A rollout ends once.
    uniqueIndex("agl_terminals_rollout").on(t.rolloutSeq),
  ],
);

/** Attempts have names there and numbers here. */
export const aglAttempts = sqliteTable(
  "agl_attempts",
  {
    rolloutSeq: integer("rollout_seq").notNull(),
    attemptId: text("attempt_id").notNull(),
    tenantId: text("tenant_id").notNull(),
    /** From 1, in order of appearance. */
    number: integer("number").notNull(),
  },
  (t) => [primaryKey({ columns: [t.rolloutSeq, t.attemptId] })],
);

export const aglEvents = sqliteTable(
  "agl_events",
  {
    /** Time-ordered. */
    id: text("id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    rolloutSeq: integer("rollout_seq").notNull(),
    attemptId: text("attempt_id").notNull(),
    eventType: text("event_type").notNull(),
    /** As posted; of a proxied call only what its row in `calls` does not hold. */
    data: text("data", { mode: "json" }).$type<Readonly<Record<string, Json>>>().notNull(),
    /** The proxied call that this event tells of. */
    callId: text("call_id"),
    createdAt: integer("created_at").notNull(),
  },
  (t) => [index("agl_events_rollout").on(t.rolloutSeq, t.attemptId, t.id)],
);

/** Inference endpoints that a trainer registered. */
export const aglModels = sqliteTable(
  "agl_models",
  {
    tenantId: text("tenant_id").notNull(),
    model: text("model").notNull(),
    /** Base URL, `/v1` included. */
    endpoint: text("endpoint").notNull(),
    /** The training step of the weights that it serves. */
    version: integer("version").notNull(),
    registeredAt: integer("registered_at").notNull(),
  },
  (t) => [primaryKey({ columns: [t.tenantId, t.model, t.endpoint] })],
);

/** Whether a tenant's proxied calls are paused; no row means that they are not. */
export const aglPauses = sqliteTable("agl_pauses", {
  tenantId: text("tenant_id").primaryKey(),
  paused: integer("paused", { mode: "boolean" }).notNull(),
  retryAfterSeconds: integer("retry_after_seconds").notNull(),
  reason: text("reason"),
  updatedAt: integer("updated_at").notNull(),
});

/** Proxied calls under way, in every isolate; a crash leaves a row, which counts until it expires. */
export const aglInflight = sqliteTable(
  "agl_inflight",
  {
    callId: text("call_id").primaryKey(),
    tenantId: text("tenant_id").notNull(),
    expiresAt: integer("expires_at").notNull(),
  },
  (t) => [index("agl_inflight_tenant").on(t.tenantId, t.expiresAt)],
);
