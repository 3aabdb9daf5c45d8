import * as z from "zod";
import {
  agentNameSchema,
  agentSettingsSchema,
  modelTargetSchema,
  type AgentSettingsInput,
} from "#shared/agent-settings.ts";
import { accepted, answered } from "#shared/wire.ts";
import { KEY_SCOPES } from "#shared/words.ts";

/**
 * Keys, providers, agents and the audit, as the edge takes and gives them; JSON is snake_case.
 *
 * | route | scope | body → answer |
 * |---|---|---|
 * | POST   /v1/keys                  | admin | KeyInput → KeyGrant; the only time that the key is shown |
 * | GET    /v1/keys                  | admin | → { keys: KeyView[] } newest first |
 * | POST   /v1/keys/:id/revoke       | admin | → { ok } |
 * | GET    /v1/providers             | read  | → { providers: ProviderView[] } |
 * | GET    /v1/providers/:name       | read  | → ProviderView |
 * | PUT    /v1/providers/:name       | admin | ProviderInput → ProviderView |
 * | DELETE /v1/providers/:name       | admin | → { ok } |
 * | GET    /v1/agents                | read  | → { agents: AgentView[] } |
 * | GET    /v1/agents/:name          | read  | → AgentView |
 * | PUT    /v1/agents/:name          | admin | agent settings → AgentView |
 * | POST   /v1/agents/:name/models   | admin | { models: { MODEL: TARGET } } → AgentView; the other models stay |
 * | DELETE /v1/agents/:name          | admin | → { ok } |
 * | GET    /v1/audit?limit&before    | admin | → { entries: AuditView[], next_before } newest first |
 */

export const keyInputSchema = accepted({
  scope: z.enum(KEY_SCOPES),
  /** The one agent that it may call for; any where null. */
  agent: agentNameSchema.nullable().default(null),
  label: z.string().max(200).default(""),
  ratePerMinute: z.int().min(1).max(1_000_000).nullable().default(null),
});
export type KeyInput = z.infer<typeof keyInputSchema>;

const keyFields = {
  id: z.string(),
  scope: z.enum(KEY_SCOPES),
  agent: z.string().nullable(),
  label: z.string(),
  ratePerMinute: z.number().nullable(),
  createdAt: z.number(),
};
export const keyGrantSchema = answered({ key: z.string(), ...keyFields });
export type KeyGrant = z.infer<typeof keyGrantSchema>;
export const keyViewSchema = answered({ ...keyFields, revokedAt: z.number().nullable() });
export type KeyView = z.infer<typeof keyViewSchema>;

export const providerNameSchema = z
  .string()
  .regex(/^[a-z0-9][a-z0-9._-]{0,62}$/, "a provider's name is lower-case letters, digits, dots and dashes");

export const providerInputSchema = accepted({
  /** Up to and without the dialect's path: `https://api.openai.com/v1`. */
  baseUrl: z.string().min(1).max(2000),
  /** The variable of the edge that holds its key, or, beside `key`, the one that the key was read from. */
  keyEnv: z
    .string()
    .regex(/^[A-Za-z_][A-Za-z0-9_]{0,127}$/, "it takes the name of an environment variable")
    .nullable()
    .default(null),
  /** The key itself, kept sealed and never shown again. */
  key: z
    .string()
    .max(4096)
    .regex(/^[!-~]+$/, "a key is one word of printable ASCII")
    .nullable()
    .default(null),
});
export type ProviderInput = z.infer<typeof providerInputSchema>;

export const providerViewSchema = answered({
  name: z.string(),
  baseUrl: z.string(),
  /** `sealed` in the store, from the edge's environment (`env`), or `none`. */
  key: z.enum(["sealed", "env", "none"]),
  keyEnv: z.string().nullable(),
  updatedAt: z.number(),
});
export type ProviderView = z.infer<typeof providerViewSchema>;

/** An agent's settings, checked and kept as they were written: they are laid over others before they are used. */
export const agentInputSchema = z.unknown().transform((given, context): AgentSettingsInput => {
  const parsed = agentSettingsSchema.safeParse(given);
  // Its schema took it as its input.
  if (parsed.success) return given as AgentSettingsInput;
  for (const { path, message } of parsed.error.issues) context.addIssue({ code: "custom", path, message });
  return z.NEVER;
});
export const agentModelsSchema = z.strictObject({
  models: z
    .record(z.string().min(1).max(256), modelTargetSchema)
    .refine((models) => Object.keys(models).length > 0, "it names no model"),
});

export const agentViewSchema = answered({
  name: z.string(),
  /** `deployed` with the edge, `stored` since, or stored over deployed (`both`). */
  source: z.enum(["deployed", "stored", "both"]),
  settings: z.looseObject({
    binding: z.string().optional(),
    url: z.string().optional(),
    models: z.record(z.string(), z.string()),
  }),
  updatedAt: z.number().nullable(),
});
export type AgentView = z.infer<typeof agentViewSchema>;

export const auditViewSchema = answered({
  id: z.string(),
  actor: z.string(),
  action: z.string(),
  target: z.string(),
  detail: z.json().nullable(),
  createdAt: z.number(),
});
export type AuditView = z.infer<typeof auditViewSchema>;

/** POST /v1/tokens/revoke: one token by its `jti`, or every one of a rollout. */
export const revocationSchema = z.union([
  accepted({ jti: z.string().min(1).max(128), expiresAt: z.int() }),
  accepted({ rolloutId: z.string().min(1).max(128) }),
]);
