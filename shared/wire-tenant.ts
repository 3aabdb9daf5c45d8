import { z } from "zod";

/** `PATCH /v1/tenant`: what is given is set, null takes it away, the rest stays. JSON as it is kept in the store. */
export const tenantPatchSchema = z.strictObject({
  fail_open: z.boolean().optional(),
  retention_days: z.number().positive().max(3650).nullable().optional(),
  otlp_export: z
    .strictObject({
      url: z.url({ protocol: /^https?$/ }).max(500),
      key_env: z
        .string()
        // A prefix of its own: no other secret of the edge can be sent anywhere by naming it here.
        .regex(/^OTLP_[A-Z0-9_]{1,60}$/, "a collector's key is in a variable of the edge whose name begins with OTLP_")
        .optional(),
    })
    .nullable()
    .optional(),
  monthly_budget: z.number().positive().max(1e9).nullable().optional(),
});
export type TenantPatch = z.infer<typeof tenantPatchSchema>;

export const tenantAnswerSchema = z.object({
  id: z.string(),
  settings: z.looseObject({
    fail_open: z.boolean(),
    retention_days: z.number().optional(),
    otlp_export: z.object({ url: z.string(), key_env: z.string().optional() }).optional(),
    monthly_budget: z.number().optional(),
  }),
});
