import { z } from "zod";

const day = z
  .string()
  .regex(/^\d{4}-\d{2}-\d{2}$/, "a day is written 2026-11-21")
  .refine((text) => !Number.isNaN(Date.parse(text)), "there is no such day");

/** `PUT /v1/prices`: what a million tokens cost from a UTC day on. */
export const priceInputSchema = z.strictObject({
  /** A policy's name, `provider/model`, or `*` for whatever has no price of its own. */
  model: z.string().min(1).max(256),
  prompt_per_million: z.number().min(0).max(1e6),
  completion_per_million: z.number().min(0).max(1e6),
  /** Today where absent. */
  from: day.optional(),
});
export type PriceInput = z.infer<typeof priceInputSchema>;

export const priceListSchema = z.object({
  prices: z.array(
    z.object({
      model: z.string(),
      from: z.string(),
      prompt_per_million: z.number(),
      completion_per_million: z.number(),
    }),
  ),
});

/** `GET /v1/usage?since=2026-11-01&rollouts=20`. */
export const usageQuerySchema = z.strictObject({
  /** The first UTC day; the current month's first where absent. */
  since: day.optional(),
  /** How many of the newest rollouts to list by themselves. */
  rollouts: z.coerce.number().int().min(0).max(500).default(0),
});

const tokens = { calls: z.number(), prompt_tokens: z.number(), completion_tokens: z.number() };
const cost = z.number().nullable();

export const usageReportSchema = z.object({
  since: z.string(),
  usage: z.array(z.object({ day: z.string(), model: z.string(), mode: z.string(), ...tokens, cost })),
  /** The same per policy, its versions together, or per provider's model. */
  models: z.array(z.object({ model: z.string(), ...tokens, cost })),
  agents: z.array(z.object({ agent: z.string(), mode: z.string(), invocations: z.number(), wall_ms: z.number() })),
  rollouts: z.array(z.object({ rollout_id: z.string(), agent: z.string(), mode: z.string(), ...tokens, cost })),
  totals: z.object({ ...tokens, cost: z.number(), agent_invocations: z.number(), wall_ms: z.number() }),
  /** Of the calendar month; null where the tenant has none. */
  budget: z.object({ monthly: z.number(), spent: z.number() }).nullable(),
});
export type UsageReport = z.infer<typeof usageReportSchema>;
