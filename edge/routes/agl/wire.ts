import { z } from "zod";
import type { AglEvent } from "#shared/store/agl-events.ts";
import type { AglRollout } from "#shared/store/agl-rollouts.ts";
import { AGL_STATES, type AglConfig } from "#shared/store/agl-tables.ts";
import type { Json } from "#shared/tables.ts";
import { laxBoolean, laxInt } from "./parse.ts";

/** What goes over the wire of Agent Lightning's REST surface. Fields it does not know are ignored, save in a patch. */

const id = z.string().max(1024);
const anything = z.custom<Json>((value) => value !== undefined, { error: "a value is needed" });
const nullable = <T extends z.ZodType>(schema: T) =>
  schema
    .nullable()
    .optional()
    .transform((value) => value ?? null);

const configSchema = z.object({
  timeout_seconds: laxInt.default(3600),
  local: nullable(
    z.object({ agent_class: nullable(z.string()), env_map: z.record(z.string(), z.string()).default({}) }),
  ),
  k8s: nullable(z.object({ job_template: nullable(z.string()), require_preloaded_images: laxBoolean.optional() })),
});

const metadataSchema = z
  .looseObject({ batch_idx: nullable(laxInt), sample_idx_in_batch: nullable(laxInt) })
  .transform((metadata): Readonly<Record<string, Json>> => metadata as Record<string, Json>);

const newRolloutSchema = z.object({
  input: anything,
  is_train: laxBoolean.default(true),
  config: nullable(configSchema),
  metadata: nullable(metadataSchema),
  rollout_id: nullable(id),
});
export const newRolloutsSchema = z.array(newRolloutSchema);

/** The settings of a rollout that was created with these. */
export function wholeConfig(given: z.output<typeof configSchema> | null): AglConfig {
  const { timeout_seconds, local, k8s } = given ?? configSchema.parse({});
  if (k8s === null) return { timeout_seconds, local, k8s };
  const { job_template, require_preloaded_images } = k8s;
  return {
    timeout_seconds,
    local,
    k8s: { job_template, ...(require_preloaded_images === undefined ? {} : { require_preloaded_images }) },
  };
}

export function wholeMetadata(given: Readonly<Record<string, Json>> | null): Readonly<Record<string, Json>> {
  return given ?? { batch_idx: null, sample_idx_in_batch: null };
}

/** How an input names itself: its `data_id`, else its `instance_id`, else not at all. */
export function dataIdOf(input: Json): string {
  if (typeof input !== "object" || input === null || Array.isArray(input)) return "";
  const named = truthy(input["data_id"]) ?? truthy(input["instance_id"]) ?? "";
  return typeof named === "object" ? JSON.stringify(named) : String(named);
}

function truthy(value: Json | undefined): Json | undefined {
  return value === undefined || value === null || value === "" || value === 0 || value === false ? undefined : value;
}

export const patchSchema = z.strictObject({
  status: z
    .strictObject({
      state: z.enum(AGL_STATES).nullable().optional(),
      k8s_job_name: z.string().nullable().optional(),
      last_attempt_id: z.string().nullable().optional(),
      error_message: z.string().nullable().optional(),
    })
    .nullable()
    .optional(),
});

export const listQuerySchema = z.object({ state_in: z.array(z.enum(AGL_STATES)), limit: laxInt.default(500) });
export const endedQuerySchema = z.object({ after: laxInt.default(0), limit: laxInt.default(1000) });
export const statusIdsSchema = z.array(z.string()).max(256);

export const newEventSchema = z.object({
  event_type: z.string(),
  data: z
    .record(z.string(), z.unknown())
    .default({})
    .transform((data): Readonly<Record<string, Json>> => data as Record<string, Json>),
});
export const eventsQuerySchema = z.object({ event_type: z.string().optional(), format: z.string().optional() });

export const modelsSchema = z.array(
  z.object({ model: z.string().max(512), endpoint: z.string().max(2048), version: laxInt.default(0) }),
);

export const pauseSchema = z.object({ retry_after_seconds: laxInt.default(5), reason: nullable(z.string()) });

// Views -------------------------------------------------------------------------------------------------------------

/** Times there are seconds. */
const seconds = (milliseconds: number): number => milliseconds / 1000;

export function statusView(rollout: AglRollout): Json {
  return {
    state: rollout.state,
    k8s_job_name: rollout.k8sJobName,
    last_attempt_id: rollout.lastAttemptId,
    error_message: rollout.errorMessage,
    version: rollout.version,
    created_at: seconds(rollout.createdAt),
    updated_at: seconds(rollout.updatedAt),
  };
}

export function rolloutView(rollout: AglRollout): Record<string, unknown> {
  const { id: rollout_id, input, isTrain: is_train, config, metadata } = rollout;
  return {
    rollout_id,
    input,
    is_train,
    config: { ...config },
    metadata: { ...metadata },
    status: statusView(rollout),
  };
}

export interface EventView {
  readonly event_type: string;
  readonly rollout_id: string;
  readonly attempt_id: string;
  readonly timestamp: number;
  readonly data: Readonly<Record<string, Json>>;
}

export function eventView(
  rolloutId: string,
  event: Pick<AglEvent, "eventType" | "attemptId" | "createdAt" | "data">,
): EventView {
  return {
    event_type: event.eventType,
    rollout_id: rolloutId,
    attempt_id: event.attemptId,
    timestamp: seconds(event.createdAt),
    data: event.data,
  };
}
