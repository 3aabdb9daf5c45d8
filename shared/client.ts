import * as z from "zod";
import type { AgentSettingsInput } from "#shared/agent-settings.ts";
import { FulgurError, messageOf, type ErrorCode } from "#shared/errors.ts";
import type { DropReason } from "#shared/words.ts";
import {
  claimedSchema,
  errorBodySchema,
  policyViewSchema,
  rolloutDetailSchema,
  rolloutViewSchema,
  runViewSchema,
  snakeKeys,
  tokenGrantSchema,
  trainStepViewSchema,
  type BatchClaim,
  type BatchTrained,
  type PolicyInput,
  type PolicyView,
  type RolloutDetail,
  type RolloutInput,
  type RolloutView,
  type RunInput,
  type RunView,
  type TaskInput,
  type TokenGrant,
  type TokenRequest,
  type TrainStepView,
} from "#shared/wire.ts";
import {
  agentViewSchema,
  auditViewSchema,
  keyGrantSchema,
  keyViewSchema,
  providerViewSchema,
  type KeyInput,
  type ProviderInput,
} from "#shared/wire-access.ts";
import {
  feedbackTakenSchema,
  recomputedSchema,
  subjectDeletedSchema,
  type FeedbackInput,
  type RecomputeBody,
} from "#shared/wire-feedback.ts";
import { priceListSchema, usageReportSchema, type PriceInput, type UsageReport } from "#shared/wire-metering.ts";
import { tenantAnswerSchema, type TenantPatch } from "#shared/wire-tenant.ts";

export interface EdgeClientOptions {
  readonly baseUrl: string;
  /** Called before each request, so that a fresh token is used. */
  readonly token: () => Promise<string> | string;
  readonly timeoutMs?: number;
  readonly fetch?: typeof fetch;
}

type Partially<T, K extends keyof T> = Omit<T, K> & Partial<Pick<T, K>>;

/**
 * The edge's own interface (wire.ts) as functions, for the trainer, the CLI and tests. One request each, no retries:
 * every write is repeatable, so callers that must get through repeat it.
 * Throws FulgurError ERR_UPSTREAM when the edge cannot be reached, or the code that the edge answered with.
 */
export function edgeClient(options: EdgeClientOptions) {
  const { baseUrl, token, timeoutMs = 30_000, fetch: send = fetch } = options;

  async function ask<S extends z.ZodType>(
    method: string,
    path: string,
    schema: S,
    body?: unknown,
  ): Promise<z.infer<S>> {
    let response: Response;
    try {
      response = await send(`${baseUrl}${path}`, {
        method,
        headers: {
          authorization: `Bearer ${await token()}`,
          ...(body === undefined ? {} : { "content-type": "application/json" }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        signal: AbortSignal.timeout(timeoutMs),
      });
    } catch (cause) {
      throw new FulgurError(
        "ERR_UPSTREAM",
        `the edge at ${baseUrl} did not answer ${method} ${path} (${messageOf(cause)}); is it running?`,
        { cause },
      );
    }
    const text = await response.text();
    if (!response.ok) throw refusal(method, path, response.status, text);
    return schema.parse(JSON.parse(text));
  }

  const done = z.object({});
  return {
    createToken: (request: Partially<TokenRequest, "pin" | "ttlSeconds">): Promise<TokenGrant> =>
      ask("POST", "/v1/tokens", tokenGrantSchema, {
        ...snakeKeys(request),
        ...(request.caps === undefined ? {} : { caps: snakeKeys(request.caps) }),
      }),
    createTasks: (tasks: readonly TaskInput[]) =>
      ask("POST", "/v1/tasks", z.object({ created: z.number() }), { tasks: tasks.map(snakeKeys) }),
    createRollouts: (rollouts: readonly Partially<RolloutInput, "groupId" | "runId" | "pin" | "maxAttempts">[]) =>
      ask("POST", "/v1/rollouts", z.object({ ids: z.array(z.string()) }), { rollouts: rollouts.map(snakeKeys) }),
    listRollouts: (
      query: Readonly<Record<string, string>> = {},
    ): Promise<{ rollouts: RolloutView[]; next_after: string | null }> =>
      ask(
        "GET",
        `/v1/rollouts?${new URLSearchParams(query).toString()}`,
        z.object({ rollouts: z.array(rolloutViewSchema), next_after: z.string().nullable() }),
      ),
    readRollout: (id: string): Promise<RolloutDetail> =>
      ask("GET", `/v1/rollouts/${encodeURIComponent(id)}`, rolloutDetailSchema),
    finishRollout: (
      id: string,
      body: { result?: string | null; error?: string | null; reward?: number | null },
    ): Promise<RolloutView> => ask("POST", `/v1/rollouts/${encodeURIComponent(id)}/finish`, rolloutViewSchema, body),
    cancelRollout: (id: string): Promise<RolloutView> =>
      ask("POST", `/v1/rollouts/${encodeURIComponent(id)}/cancel`, rolloutViewSchema, {}),
    dropRollouts: (ids: readonly string[], reason: DropReason) =>
      ask("POST", "/v1/rollouts/drop", z.object({ dropped: z.number() }), { ids, reason }),
    createPolicy: (policy: Partially<PolicyInput, "kind">) => ask("POST", "/v1/policies", done, snakeKeys(policy)),
    routePolicy: (name: string, version: number) =>
      ask("POST", `/v1/policies/${encodeURIComponent(name)}/route`, done, { version }),
    /** @returns those of the versions that are retired now: their artifacts may be removed */
    retireVersions: async (name: string, versions: readonly number[]): Promise<number[]> =>
      (
        await ask(
          "POST",
          `/v1/policies/${encodeURIComponent(name)}/retire`,
          z.object({ retired: z.array(z.number()) }),
          { versions },
        )
      ).retired,
    listPolicies: async (): Promise<PolicyView[]> =>
      (await ask("GET", "/v1/policies", z.object({ policies: z.array(policyViewSchema) }))).policies,
    putRun: (run: RunInput) => ask("POST", "/v1/runs", done, snakeKeys(run)),
    listRuns: async (): Promise<RunView[]> =>
      (await ask("GET", "/v1/runs", z.object({ runs: z.array(runViewSchema) }))).runs,
    /** @param since only the steps after this one, counted from 0 */
    listSteps: async (runId: string, since?: number): Promise<TrainStepView[]> =>
      (
        await ask(
          "GET",
          `/v1/runs/${encodeURIComponent(runId)}/steps${since === undefined ? "" : `?since=${since}`}`,
          z.object({ steps: z.array(trainStepViewSchema) }),
        )
      ).steps,
    putMetrics: (runId: string, points: readonly { step: number; name: string; value: number }[]) =>
      ask("POST", `/v1/runs/${encodeURIComponent(runId)}/metrics`, done, { points }),
    claimBatch: (claim: BatchClaim) =>
      ask("POST", "/v1/batches/claim", claimedSchema, {
        ...snakeKeys(claim),
        ...(claim.live === undefined ? {} : { live: snakeKeys(claim.live) }),
      }),
    markTrained: (batchId: string, body: BatchTrained) =>
      ask("POST", `/v1/batches/${encodeURIComponent(batchId)}/trained`, done, snakeKeys(body)),
    giveFeedback: (feedback: Partially<FeedbackInput, "name">) =>
      ask("POST", "/v1/feedback", feedbackTakenSchema, snakeKeys(feedback)),
    recomputeRewards: (page: RecomputeBody) => ask("POST", "/v1/rewards/recompute", recomputedSchema, snakeKeys(page)),
    deleteSubject: (id: string) => ask("DELETE", `/v1/subjects/${encodeURIComponent(id)}`, subjectDeletedSchema),
    readUsage: (query: Readonly<Record<string, string>> = {}): Promise<UsageReport> =>
      ask("GET", `/v1/usage?${new URLSearchParams(query).toString()}`, usageReportSchema),
    listPrices: () => ask("GET", "/v1/prices", priceListSchema),
    putPrice: (price: PriceInput) => ask("PUT", "/v1/prices", done, price),
    readTenant: () => ask("GET", "/v1/tenant", tenantAnswerSchema),
    patchTenant: (patch: TenantPatch) => ask("PATCH", "/v1/tenant", tenantAnswerSchema, patch),
    createKey: (key: Partially<KeyInput, "agent" | "label" | "ratePerMinute">) =>
      ask("POST", "/v1/keys", keyGrantSchema, snakeKeys(key)),
    listKeys: async () => (await ask("GET", "/v1/keys", z.object({ keys: z.array(keyViewSchema) }))).keys,
    revokeKey: (id: string) => ask("POST", `/v1/keys/${encodeURIComponent(id)}/revoke`, done, {}),
    putProvider: (name: string, provider: Partially<ProviderInput, "key" | "keyEnv">) =>
      ask("PUT", `/v1/providers/${encodeURIComponent(name)}`, providerViewSchema, snakeKeys(provider)),
    listProviders: async () =>
      (await ask("GET", "/v1/providers", z.object({ providers: z.array(providerViewSchema) }))).providers,
    deleteProvider: (name: string) => ask("DELETE", `/v1/providers/${encodeURIComponent(name)}`, done),
    putAgent: (name: string, settings: AgentSettingsInput) =>
      ask("PUT", `/v1/agents/${encodeURIComponent(name)}`, agentViewSchema, settings),
    mapModels: (name: string, models: Readonly<Record<string, string>>) =>
      ask("POST", `/v1/agents/${encodeURIComponent(name)}/models`, agentViewSchema, { models }),
    listAgents: async () => (await ask("GET", "/v1/agents", z.object({ agents: z.array(agentViewSchema) }))).agents,
    readAgent: (name: string) => ask("GET", `/v1/agents/${encodeURIComponent(name)}`, agentViewSchema),
    deleteAgent: (name: string) => ask("DELETE", `/v1/agents/${encodeURIComponent(name)}`, done),
    listAudit: (query: Readonly<Record<string, string>> = {}) =>
      ask(
        "GET",
        `/v1/audit?${new URLSearchParams(query).toString()}`,
        z.object({ entries: z.array(auditViewSchema), next_before: z.string().nullable() }),
      ),
    abandonBatch: (batchId: string, reason: DropReason) =>
      ask("POST", `/v1/batches/${encodeURIComponent(batchId)}/abandon`, done, { reason }),
  };
}

export type EdgeClient = ReturnType<typeof edgeClient>;

function refusal(method: string, path: string, status: number, text: string): FulgurError {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const parsed = errorBodySchema.safeParse(body);
  const message = parsed.success ? parsed.data.error.message : text.slice(0, 200);
  const byStatus: Partial<Record<number, ErrorCode>> = {
    400: "ERR_INVALID_REQUEST",
    401: "ERR_AUTH",
    402: "ERR_BUDGET",
    403: "ERR_FORBIDDEN",
    404: "ERR_NOT_FOUND",
    409: "ERR_CONFLICT",
    413: "ERR_TOO_LARGE",
    429: "ERR_OVERLOADED",
    503: "ERR_STORE",
  };
  return new FulgurError(
    byStatus[status] ?? "ERR_UPSTREAM",
    `${method} ${path} was refused with ${status}: ${message}`,
  );
}
