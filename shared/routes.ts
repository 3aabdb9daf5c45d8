import { z } from "zod";
import { agentSettingsSchema } from "#shared/agent-settings.ts";
import {
  agentModelsSchema,
  agentViewSchema,
  auditViewSchema,
  keyGrantSchema,
  keyInputSchema,
  keyViewSchema,
  providerInputSchema,
  providerViewSchema,
  revocationSchema,
} from "#shared/wire-access.ts";
import {
  feedbackInputSchema,
  feedbackTakenSchema,
  recomputedSchema,
  recomputeInputSchema,
  subjectDeletedSchema,
  toolResultInputSchema,
  toolResultTakenSchema,
} from "#shared/wire-feedback.ts";
import { priceInputSchema, priceListSchema, usageQuerySchema, usageReportSchema } from "#shared/wire-metering.ts";
import { tenantAnswerSchema, tenantPatchSchema } from "#shared/wire-tenant.ts";
import {
  abandonBodySchema,
  batchClaimSchema,
  batchTrainedSchema,
  claimedSchema,
  dropBodySchema,
  finishBodySchema,
  metricsBodySchema,
  policyInputSchema,
  policyViewSchema,
  retireBodySchema,
  rewardInputSchema,
  rolloutDetailSchema,
  rolloutsBodySchema,
  rolloutViewSchema,
  routeBodySchema,
  runInputSchema,
  runViewSchema,
  stepsQuerySchema,
  tasksBodySchema,
  tokenGrantSchema,
  tokenRequestSchema,
  trainStepViewSchema,
} from "#shared/wire.ts";

/**
 * Every route of the edge, as data: the OpenAPI document and its page are made of it, and a test holds it against the app.
 * The LLM dialects and Agent Lightning's surface have their own vendors' documentation; here they are only named.
 */

export type RouteTag =
  | "llm"
  | "rollouts"
  | "rewards"
  | "training"
  | "access"
  | "metering"
  | "telemetry"
  | "agent-lightning"
  | "edge";

export interface RouteSpec {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Hono's notation: `/v1/rollouts/:id`. */
  readonly path: string;
  readonly tag: RouteTag;
  /** Who may: a scope, `rollout` for a rollout's own token, `–` for anybody. */
  readonly scopes: readonly string[];
  readonly summary: string;
  readonly query?: z.ZodType;
  readonly body?: z.ZodType;
  readonly answer?: z.ZodType;
}

const ok = z.object({ ok: z.literal(true) });
const callers = ["rollout", "agent", "trainer", "admin"];
const anybody = ["–"];
const { shape: page } = z.object({ limit: z.int().min(1).max(500).optional(), after: z.string().optional() });

function llm(path: string, summary: string): RouteSpec {
  return { method: "POST", path, tag: "llm", scopes: callers, summary };
}

function agl(method: RouteSpec["method"], path: string, summary: string): RouteSpec {
  return { method, path, tag: "agent-lightning", scopes: ["trainer"], summary };
}

export const ROUTES: readonly RouteSpec[] = [
  llm("/v1/chat/completions", "OpenAI chat completions, streaming or not"),
  llm("/v1/completions", "OpenAI completions (legacy), streaming or not"),
  llm("/v1/responses", "OpenAI responses, streaming or not, with previous_response_id"),
  llm("/v1/messages", "Anthropic messages, streaming or not"),
  llm("/v1/embeddings", "OpenAI embeddings, of a provider"),
  {
    method: "GET",
    path: "/v1/models",
    tag: "llm",
    scopes: callers,
    summary: "the model names that the agent's map offers",
  },
  { method: "GET", path: "/v1/models/:id", tag: "llm", scopes: callers, summary: "one model name" },

  {
    method: "POST",
    path: "/v1/tasks",
    tag: "rollouts",
    scopes: ["trainer"],
    summary: "create tasks; repeatable",
    body: tasksBodySchema,
    answer: z.object({ created: z.number() }),
  },
  {
    method: "POST",
    path: "/v1/rollouts",
    tag: "rollouts",
    scopes: ["trainer"],
    summary: "create rollouts of tasks; they are queued for their agents",
    body: rolloutsBodySchema,
    answer: z.object({ ids: z.array(z.string()) }),
  },
  {
    method: "GET",
    path: "/v1/rollouts",
    tag: "rollouts",
    scopes: ["read"],
    summary: "list rollouts, newest first",
    query: z.object({
      ...page,
      mode: z.string().optional(),
      status: z.string().optional().describe("one, or several with commas between"),
      run_id: z.string().optional(),
    }),
    answer: z.object({ rollouts: z.array(rolloutViewSchema), next_after: z.string().nullable() }),
  },
  {
    method: "GET",
    path: "/v1/rollouts/:id",
    tag: "rollouts",
    scopes: ["rollout", "read"],
    summary: "one rollout with its attempts, calls, token ids, logprobs and rewards",
    answer: rolloutDetailSchema,
  },
  {
    method: "POST",
    path: "/v1/rollouts/:id/finish",
    tag: "rollouts",
    scopes: ["rollout", "trainer"],
    summary: "end a rollout with its result, or its error",
    body: finishBodySchema,
    answer: rolloutViewSchema,
  },
  {
    method: "POST",
    path: "/v1/rollouts/:id/cancel",
    tag: "rollouts",
    scopes: ["rollout", "trainer"],
    summary: "cancel a rollout",
    answer: rolloutViewSchema,
  },
  {
    method: "POST",
    path: "/v1/rollouts/:id/tool-results",
    tag: "rewards",
    scopes: callers,
    summary: "what became of a tool call, where no request and no span shows it",
    body: toolResultInputSchema,
    answer: toolResultTakenSchema,
  },
  {
    method: "POST",
    path: "/v1/rollouts/drop",
    tag: "rollouts",
    scopes: ["trainer"],
    summary: "give rollouts that train nothing their reason",
    body: dropBodySchema,
    answer: z.object({ dropped: z.number() }),
  },
  {
    method: "POST",
    path: "/v1/rewards",
    tag: "rewards",
    scopes: ["rollout", "trainer"],
    summary: "a reward for a rollout or one of its calls; the same key twice is one reward",
    body: rewardInputSchema,
    answer: z.object({ id: z.string(), created: z.boolean() }),
  },
  {
    method: "POST",
    path: "/v1/rewards/recompute",
    tag: "rewards",
    scopes: ["trainer"],
    summary: "compute stored rollouts' rewards again with other settings; old values are kept",
    body: recomputeInputSchema,
    answer: recomputedSchema,
  },
  {
    method: "POST",
    path: "/v1/feedback",
    tag: "rewards",
    scopes: callers,
    summary: "late feedback on a rollout or a call, within the agent's attribution window",
    body: feedbackInputSchema,
    answer: feedbackTakenSchema,
  },

  {
    method: "POST",
    path: "/v1/policies",
    tag: "training",
    scopes: ["trainer"],
    summary: "register a policy with its base version; repeatable",
    body: policyInputSchema,
    answer: ok,
  },
  {
    method: "GET",
    path: "/v1/policies",
    tag: "training",
    scopes: ["read"],
    summary: "policies, their versions and routes",
    answer: z.object({ policies: z.array(policyViewSchema) }),
  },
  {
    method: "POST",
    path: "/v1/policies/:name/route",
    tag: "training",
    scopes: ["trainer"],
    summary: "route a policy's calls to a version; a retired one is refused",
    body: routeBodySchema,
    answer: ok,
  },
  {
    method: "POST",
    path: "/v1/policies/:name/retire",
    tag: "training",
    scopes: ["trainer"],
    summary: "retire versions whose artifacts are to be removed, except those in use; repeatable",
    body: retireBodySchema,
    answer: z.object({ retired: z.array(z.number()) }),
  },
  {
    method: "POST",
    path: "/v1/runs",
    tag: "training",
    scopes: ["trainer"],
    summary: "register a run; later fields win",
    body: runInputSchema,
    answer: ok,
  },
  {
    method: "GET",
    path: "/v1/runs",
    tag: "training",
    scopes: ["read"],
    summary: "runs, newest first",
    answer: z.object({ runs: z.array(runViewSchema) }),
  },
  {
    method: "GET",
    path: "/v1/runs/:id/steps",
    tag: "training",
    scopes: ["read"],
    summary: "a run's steps with their metrics, also those that are known only after publishing",
    query: stepsQuerySchema,
    answer: z.object({ steps: z.array(trainStepViewSchema) }),
  },
  {
    method: "POST",
    path: "/v1/runs/:id/metrics",
    tag: "training",
    scopes: ["trainer"],
    summary: "points that are not of a step",
    body: metricsBodySchema,
    answer: ok,
  },
  {
    method: "POST",
    path: "/v1/batches/claim",
    tag: "training",
    scopes: ["trainer"],
    summary: "claim finished groups for a batch, in one transaction; repeatable",
    body: batchClaimSchema,
    answer: claimedSchema,
  },
  {
    method: "POST",
    path: "/v1/batches/:id/trained",
    tag: "training",
    scopes: ["trainer"],
    summary: "close a batch: its rollouts trained, the version registered, in one transaction",
    body: batchTrainedSchema,
    answer: ok,
  },
  {
    method: "POST",
    path: "/v1/batches/:id/abandon",
    tag: "training",
    scopes: ["trainer"],
    summary: "give up a batch; its rollouts are dropped with the reason",
    body: abandonBodySchema,
    answer: ok,
  },

  {
    method: "POST",
    path: "/v1/tokens",
    tag: "access",
    scopes: ["agent", "admin"],
    summary: "a token of at most 15 minutes: for an agent's session, or of scopes",
    body: tokenRequestSchema,
    answer: tokenGrantSchema,
  },
  {
    method: "POST",
    path: "/v1/tokens/revoke",
    tag: "access",
    scopes: ["admin"],
    summary: "revoke a token, or every one of a rollout",
    body: revocationSchema,
    answer: ok,
  },
  {
    method: "POST",
    path: "/v1/keys",
    tag: "access",
    scopes: ["admin"],
    summary: "a long-lived key, shown this once",
    body: keyInputSchema,
    answer: keyGrantSchema,
  },
  {
    method: "GET",
    path: "/v1/keys",
    tag: "access",
    scopes: ["admin"],
    summary: "keys, newest first, without their secrets",
    answer: z.object({ keys: z.array(keyViewSchema) }),
  },
  {
    method: "POST",
    path: "/v1/keys/:id/revoke",
    tag: "access",
    scopes: ["admin"],
    summary: "revoke a key",
    answer: ok,
  },
  {
    method: "GET",
    path: "/v1/providers",
    tag: "access",
    scopes: ["read"],
    summary: "frozen upstreams",
    answer: z.object({ providers: z.array(providerViewSchema) }),
  },
  {
    method: "GET",
    path: "/v1/providers/:name",
    tag: "access",
    scopes: ["read"],
    summary: "one upstream",
    answer: providerViewSchema,
  },
  {
    method: "PUT",
    path: "/v1/providers/:name",
    tag: "access",
    scopes: ["admin"],
    summary: "add or change an upstream; its key is sealed and never shown",
    body: providerInputSchema,
    answer: providerViewSchema,
  },
  {
    method: "DELETE",
    path: "/v1/providers/:name",
    tag: "access",
    scopes: ["admin"],
    summary: "remove an upstream",
    answer: ok,
  },
  {
    method: "GET",
    path: "/v1/agents",
    tag: "access",
    scopes: ["read"],
    summary: "agents with their settings",
    answer: z.object({ agents: z.array(agentViewSchema) }),
  },
  {
    method: "GET",
    path: "/v1/agents/:name",
    tag: "access",
    scopes: ["read"],
    summary: "one agent",
    answer: agentViewSchema,
  },
  {
    method: "PUT",
    path: "/v1/agents/:name",
    tag: "access",
    scopes: ["admin"],
    summary: "set an agent up",
    body: agentSettingsSchema,
    answer: agentViewSchema,
  },
  {
    method: "POST",
    path: "/v1/agents/:name/models",
    tag: "access",
    scopes: ["admin"],
    summary: "map model names of an agent to policies or providers; the others stay",
    body: agentModelsSchema,
    answer: agentViewSchema,
  },
  {
    method: "DELETE",
    path: "/v1/agents/:name",
    tag: "access",
    scopes: ["admin"],
    summary: "forget an agent's settings",
    answer: ok,
  },
  {
    method: "DELETE",
    path: "/v1/subjects/:id",
    tag: "access",
    scopes: ["admin"],
    summary: "delete a person's data; says what was already trained on",
    answer: subjectDeletedSchema,
  },
  {
    method: "GET",
    path: "/v1/audit",
    tag: "access",
    scopes: ["admin"],
    summary: "who minted, revoked, promoted, deleted; newest first",
    answer: z.object({ entries: z.array(auditViewSchema), next_before: z.string().nullable() }),
  },
  {
    method: "GET",
    path: "/v1/tenant",
    tag: "access",
    scopes: ["read"],
    summary: "the tenant's settings",
    answer: tenantAnswerSchema,
  },
  {
    method: "PATCH",
    path: "/v1/tenant",
    tag: "access",
    scopes: ["admin"],
    summary: "change settings; null takes one away",
    body: tenantPatchSchema,
    answer: tenantAnswerSchema,
  },

  {
    method: "GET",
    path: "/v1/usage",
    tag: "metering",
    scopes: ["read"],
    summary: "calls, tokens and cost per day, model and mode; agent runs",
    query: usageQuerySchema,
    answer: usageReportSchema,
  },
  {
    method: "GET",
    path: "/v1/prices",
    tag: "metering",
    scopes: ["read"],
    summary: "the price list with its history",
    answer: priceListSchema,
  },
  {
    method: "PUT",
    path: "/v1/prices",
    tag: "metering",
    scopes: ["admin"],
    summary: "a model's price from a UTC day on",
    body: priceInputSchema,
  },

  {
    method: "POST",
    path: "/v1/traces",
    tag: "telemetry",
    scopes: callers,
    summary: "OTLP/HTTP spans, JSON or protobuf, plain or gzip",
  },
  {
    method: "POST",
    path: "/v1/logs",
    tag: "telemetry",
    scopes: callers,
    summary: "OTLP/HTTP events: gen_ai.evaluation.result becomes a reward",
  },

  agl("POST", "/api/rollouts", "create rollouts"),
  agl("GET", "/api/rollouts", "list rollouts"),
  agl("GET", "/api/rollouts/terminal", "ended rollouts, in pages"),
  agl("POST", "/api/rollouts/status", "states of some rollouts"),
  agl("GET", "/api/rollouts/:id", "one rollout"),
  agl("PATCH", "/api/rollouts/:id", "change its state"),
  agl("DELETE", "/api/rollouts/:id", "delete it"),
  agl("POST", "/api/rollouts/:id/attempt/:attempt/events", "post an event"),
  agl("GET", "/api/rollouts/:id/events", "its events, or its triplets"),
  agl("POST", "/api/models", "register an inference endpoint"),
  agl("DELETE", "/api/models", "forget inference endpoints"),
  agl("POST", "/proxy/rollout/:id/attempt/:attempt/mode/:mode/openai/v1/:path{.+}", "an LLM call within a rollout"),
  agl("POST", "/proxy/pause", "answer proxied calls with 503 until resumed"),
  agl("POST", "/proxy/resume", "answer proxied calls again"),
  agl("GET", "/proxy/state", "whether proxied calls are paused, and how many are under way"),

  { method: "GET", path: "/healthz", tag: "edge", scopes: anybody, summary: "whether the edge answers" },
  {
    method: "GET",
    path: "/healthz/shards",
    tag: "edge",
    scopes: anybody,
    summary: "whether writes reach each shard of the store, and what waits for it",
    answer: z.object({ shards: z.array(z.object({ shard: z.int(), up: z.boolean(), outbox: z.int() })) }),
  },
  {
    method: "GET",
    path: "/healthz/inference",
    tag: "edge",
    scopes: anybody,
    summary: "whether the isolate that answers sends calls to each inference server",
    answer: z.object({ servers: z.array(z.object({ server: z.int(), in_service: z.boolean() })) }),
  },
  { method: "GET", path: "/.well-known/jwks.json", tag: "edge", scopes: anybody, summary: "public keys of the tokens" },
  { method: "GET", path: "/metrics", tag: "edge", scopes: anybody, summary: "counters in Prometheus' text form" },
  {
    method: "GET",
    path: "/v1/session",
    tag: "edge",
    scopes: anybody,
    summary: "a read token for the page, on a local edge",
  },
  { method: "GET", path: "/openapi.json", tag: "edge", scopes: anybody, summary: "this document" },
  { method: "GET", path: "/docs", tag: "edge", scopes: anybody, summary: "its page" },
];
