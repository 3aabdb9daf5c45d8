/** The closed vocabularies of ARCHITECTURE.md's word table, and which state may follow which. */

export const MODES = ["train", "val", "live"] as const;
export type Mode = (typeof MODES)[number];

export const SPLITS = ["train", "val"] as const;
export type Split = (typeof SPLITS)[number];

export const ROLLOUT_STATUSES = ["queued", "running", "finished", "failed", "cancelled"] as const;
export type RolloutStatus = (typeof ROLLOUT_STATUSES)[number];

/** Legal changes of a rollout's status; `running → queued` is a retry, which opens a new attempt. */
export const ROLLOUT_TRANSITIONS: Readonly<Record<RolloutStatus, readonly RolloutStatus[]>> = {
  queued: ["running", "cancelled"],
  running: ["queued", "finished", "failed", "cancelled"],
  finished: [],
  failed: [],
  cancelled: [],
};

export const ATTEMPT_STATUSES = ["running", "finished", "failed", "timeout", "cancelled"] as const;
export type AttemptStatus = (typeof ATTEMPT_STATUSES)[number];

export const BATCH_STATUSES = ["claimed", "trained", "abandoned"] as const;
export type BatchStatus = (typeof BATCH_STATUSES)[number];

export const DISPOSITIONS = ["trained", "dropped"] as const;
export type Disposition = (typeof DISPOSITIONS)[number];

/** Why a rollout trained nothing. Infrastructure failures are never a zero reward. */
export const DROP_REASONS = [
  "upstream_failed",
  "agent_failed",
  "timeout",
  "cancelled",
  "no_trainable_call",
  "no_reward",
  "zero_spread",
  "stale",
  "run_ended",
  "evaluation",
  "deleted",
] as const;
export type DropReason = (typeof DROP_REASONS)[number];

export const REWARD_SOURCES = ["air", "terminal", "judge", "explicit", "feedback"] as const;
export type RewardSource = (typeof REWARD_SOURCES)[number];

/** The role of calls that judge a rollout: recorded in it, and no part of what its agent did. */
export const JUDGE_ROLE = "judge";

/**
 * What a token may do. `call`: LLM calls and rewards within its own rollout. `agent`: open live sessions and call in them.
 * `read`: read the tenant's records. `trainer`: create rollouts and tasks, claim and close batches, register versions.
 * `inference`: be answered by the inference endpoint. `admin`: everything, tokens and keys included.
 */
export const SCOPES = ["call", "agent", "read", "trainer", "inference", "admin"] as const;
export type Scope = (typeof SCOPES)[number];

/** The scopes that a long-lived key may have. */
export const KEY_SCOPES = ["admin", "agent", "trainer", "read"] as const;
export type KeyScope = (typeof KEY_SCOPES)[number];

/** The tenant that an installation has from the beginning. */
export const DEFAULT_TENANT = "default";

/** Whom the edge names in tokens that it signs for itself: it asks inference for all tenants, and none may be called so. */
export const EDGE_SUBJECT = "edge";

/** `flight`, 13 → `flight@13`: the one way a tenant's policy version is written. */
export function versionName(policy: string, version: number): string {
  return `${policy}@${version}`;
}

/** The inverse of {@link versionName}; undefined where the text is not of that form. */
export function parseVersionName(name: string): { readonly policy: string; readonly version: number } | undefined {
  const match = /^([a-z0-9][a-z0-9._-]{0,62})@(0|[1-9][0-9]{0,8})$/.exec(name);
  return match?.[1] !== undefined && match[2] !== undefined
    ? { policy: match[1], version: Number(match[2]) }
    : undefined;
}

/** In no policy's name; URLs, file systems, vLLM and Prometheus' labels take it as it is. */
const OWNER_MARK = "~";

/**
 * A name where tenants share a place, such as an inference server or a folder: `flight` of the default tenant, `acme~flight`
 * of tenant `acme`. What of a tenant's id is no lower-case letter, digit, dot, dash or underscore is written as `~` and the
 * four hex digits of its UTF-16 code unit: no two tenants have one name, nor on file systems that take `A` for `a`.
 */
export function qualified(tenantId: string, name: string): string {
  if (tenantId === DEFAULT_TENANT) return name;
  const owner = tenantId.replaceAll(/^[^a-z0-9]|[^a-z0-9._-]/g, (unit) => {
    return OWNER_MARK + unit.charCodeAt(0).toString(16).padStart(4, "0");
  });
  return owner + OWNER_MARK + name;
}

/** The name under which inference serves a tenant's policy version: `flight@13`, `acme~flight@13`. Agents never see it. */
export function servedName(tenantId: string, policy: string, version: number): string {
  return versionName(qualified(tenantId, policy), version);
}

/** Whose version a served name is: the inverse of {@link servedName}; undefined where the text is not of that form. */
export function parseServedName(
  name: string,
): { readonly tenantId: string; readonly policy: string; readonly version: number } | undefined {
  const mark = name.lastIndexOf(OWNER_MARK);
  const named = parseVersionName(name.slice(mark + 1));
  if (named === undefined || mark === 0) return undefined;
  const owner = name.slice(0, Math.max(0, mark));
  const tenantId =
    mark < 0
      ? DEFAULT_TENANT
      : owner.replaceAll(/~([0-9a-f]{4})/g, (_, unit: string) => String.fromCharCode(Number.parseInt(unit, 16)));
  // A tenant's id can be written in one way only.
  return servedName(tenantId, named.policy, named.version) === name ? { tenantId, ...named } : undefined;
}
