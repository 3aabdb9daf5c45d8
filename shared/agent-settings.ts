import { z } from "zod";

/**
 * What the edge knows of an agent: where it runs, which model names lead where, how its runs are rewarded, and what of its
 * live traffic is kept. Set at deploy time (the edge's AGENTS variable) or later (`fulgur agents`, PUT /v1/agents/:name).
 */

export const agentNameSchema = z
  .string()
  .regex(/^[a-z0-9][a-z0-9-]{0,62}$/, "an agent's name is lower-case letters, digits and dashes");

/** `policy:flight` (trained) or `provider:openai/gpt-5-mini` (frozen). */
export const modelTargetSchema = z
  .string()
  .max(300)
  .regex(
    /^(policy:[a-z0-9][a-z0-9._-]{0,62}|provider:[a-z0-9][a-z0-9._-]{0,62}\/.+)$/,
    "a model leads to policy:NAME or to provider:NAME/MODEL",
  );

export type ModelTarget =
  | { readonly kind: "policy"; readonly policy: string }
  | { readonly kind: "provider"; readonly provider: string; readonly model: string };

/** The parts of a {@link modelTargetSchema} text. */
export function parseModelTarget(text: string): ModelTarget {
  const rest = text.slice(text.indexOf(":") + 1);
  if (text.startsWith("policy:")) return { kind: "policy", policy: rest };
  const slash = rest.indexOf("/");
  return { kind: "provider", provider: rest.slice(0, slash), model: rest.slice(slash + 1) };
}

const pattern = z.string().min(1).max(500);

/** When a tool's result counts as success; every rule that is given must hold. */
const successSchema = z.strictObject({
  /** A JSON object with a truthy field of one of these names is a failure. */
  json_error_fields: z.array(z.string().min(1)).max(16).optional(),
  /** A text that begins with one of these, in any case, is a failure. */
  error_prefixes: z.array(z.string().min(1)).max(16).optional(),
  /** A text in which this is found is a failure. */
  error_pattern: pattern.optional(),
  /** A text in which this is not found is a failure. */
  success_pattern: pattern.optional(),
  /** A JSON object's `status` or `status_code` from here on is a failure. */
  http_error_from: z.int().min(100).max(600).optional(),
  /** Whether an empty text, list or object is a failure. */
  empty_is_error: z.boolean().optional(),
});
export type SuccessRules = z.infer<typeof successSchema>;

const toolSchema = z.union([
  z.number().min(0).max(1),
  z.strictObject({ weight: z.number().min(0).max(1), success: successSchema.optional() }),
]);

/** How the text that an agent ended with is judged where its task brings no judge of its own. */
export const evaluatorSchema = z.discriminatedUnion("type", [
  z.strictObject({
    type: z.literal("exact_match"),
    answer_pattern: pattern.optional(),
    ignore_case: z.boolean().default(false),
  }),
  z.strictObject({ type: z.literal("token_f1"), answer_pattern: pattern.optional() }),
  z.strictObject({
    type: z.literal("numeric"),
    answer_pattern: pattern.optional(),
    relative_tolerance: z.number().min(0).max(1).default(1e-6),
    absolute_tolerance: z.number().min(0).default(1e-9),
  }),
  z.strictObject({ type: z.literal("json_schema"), schema: z.record(z.string(), z.json()) }),
  z.strictObject({
    type: z.literal("sql"),
    answer_pattern: pattern.optional(),
    setup: z.string().max(100_000).default(""),
  }),
  z.strictObject({
    type: z.literal("llm_judge"),
    /** Through the same proxy: `provider:NAME/MODEL` or `policy:NAME`. */
    model: modelTargetSchema,
    prompt: z.string().min(1).max(20_000),
    /** The judge's number is divided by this; the quotient is clamped to [0, 1]. */
    scale: z.number().positive().default(10),
  }),
  z.strictObject({
    type: z.literal("worker"),
    binding: z
      .string()
      .regex(/^[A-Z][A-Z0-9_]*$/)
      .optional(),
    url: z.url().optional(),
  }),
]);
export type Evaluator = z.infer<typeof evaluatorSchema>;

/** One thing that is hidden before anything is stored: text found by a pattern, or the value at a JSON path (`$.user.email`, `*` for any key). */
const redactionSchema = z.union([
  z.strictObject({ pattern, replacement: z.string().max(100).default("[redacted]") }),
  z.strictObject({
    path: z.string().startsWith("$.").max(300),
    replacement: z.string().max(100).default("[redacted]"),
  }),
]);
export type Redaction = z.infer<typeof redactionSchema>;

const liveSchema = z.strictObject({
  /** Part of the sessions that is recorded. */
  sample: z.number().min(0).max(1).default(1),
  /** `required`: only sessions that carry `x-fulgur-consent: granted` are recorded. */
  consent: z.enum(["assumed", "required"]).default("assumed"),
  redact: z.array(redactionSchema).max(64).default([]),
});

const feedbackSchema = z.strictObject({
  /** Feedback that comes later than this after the rollout's last call is refused with its reason. */
  window_hours: z
    .number()
    .positive()
    .max(24 * 90)
    .default(72),
  /** Which rollouts take feedback. */
  modes: z
    .array(z.enum(["train", "val", "live"]))
    .min(1)
    .default(["live"]),
});

export const agentSettingsSchema = z
  .strictObject({
    /** Name of the service binding that leads to the agent's Worker. */
    binding: z
      .string()
      .regex(/^[A-Z][A-Z0-9_]*$/, "a binding's name is upper-case letters, digits and _")
      .optional(),
    /** HTTPS endpoint (http on loopback) that takes `POST {input}` like the Worker wrapper; for agents that run elsewhere. */
    url: z.url().optional(),
    /** Short for `models: { "*": "policy:…" }`. */
    policy: z.string().min(1).optional(),
    /** Model name that the agent asks for → where it leads; `*` is any other name. */
    models: z.record(z.string().min(1).max(256), modelTargetSchema).default({}),
    /** Tool name → weight of its AIR signal, or weight and success rules. */
    tools: z.record(z.string(), toolSchema).default({}),
    /** r = α·status + (1 − α)·terminal. */
    alpha: z.number().min(0).max(1).default(0.5),
    evaluator: evaluatorSchema.optional(),
    /** Share of the terminal reward that the right answer earns; the rest is for its form. */
    correctness_share: z.number().min(0).max(1).default(0.9),
    feedback: feedbackSchema.prefault({}),
    live: liveSchema.prefault({}),
    concurrency: z.int().min(1).max(1000).default(32),
    timeout_ms: z.int().min(1000).max(900_000).default(60_000),
    max_attempts: z.int().min(1).max(10).default(3),
  })
  .refine(
    ({ binding, url }) => binding === undefined || url === undefined,
    "an agent runs behind a binding or at a url, not both",
  )
  .transform(
    ({
      timeout_ms: timeoutMs,
      max_attempts: maxAttempts,
      correctness_share: correctnessShare,
      policy,
      models,
      tools,
      ...rest
    }) => ({
      ...rest,
      timeoutMs,
      maxAttempts,
      correctnessShare,
      models: policy === undefined || Object.hasOwn(models, "*") ? models : { ...models, "*": `policy:${policy}` },
      tools: Object.fromEntries(
        Object.entries(tools).map(([name, tool]) => [name, typeof tool === "number" ? tool : tool.weight]),
      ),
      success: Object.fromEntries(
        Object.entries(tools).flatMap(([name, tool]) =>
          typeof tool === "number" || tool.success === undefined ? [] : [[name, tool.success]],
        ),
      ),
    }),
  );

/** As it is written in AGENTS, in the store and on the wire. */
export type AgentSettingsInput = z.input<typeof agentSettingsSchema>;
export type AgentSettings = z.output<typeof agentSettingsSchema>;
