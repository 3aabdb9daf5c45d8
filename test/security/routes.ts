import { ROUTES, type RouteSpec } from "#shared/routes.ts";
import { SHA256 } from "../support/edge.ts";

/** The routes of the edge with what they take, for tests that try something on each of them. */

/** A route's call, with a real path in place of its pattern and a body that it takes. */
export const GOOD_BODIES: Readonly<Record<string, unknown>> = {
  "POST /v1/chat/completions": { model: "any", messages: [{ role: "user", content: "hi" }] },
  "POST /v1/completions": { model: "any", prompt: "hi" },
  "POST /v1/responses": { model: "any", input: "hi" },
  "POST /v1/messages": { model: "any", max_tokens: 5, messages: [{ role: "user", content: "hi" }] },
  "POST /v1/embeddings": { model: "any", input: "hi" },
  "POST /v1/tokens": { scopes: ["read"] },
  "POST /v1/tokens/revoke": { jti: "nobody", expires_at: 1 },
  "POST /v1/tasks": {
    tasks: [
      {
        id: "t",
        agent: "flight",
        split: "train",
        input: {},
        judge: { answer_pattern: "is (.+)", format_pattern: ".*", expected: "y" },
      },
    ],
  },
  "POST /v1/rollouts": { rollouts: [{ id: "r", task_id: "t", agent: "flight", mode: "train" }] },
  "POST /v1/rollouts/ro_1/finish": { result: "x" },
  "POST /v1/rollouts/ro_1/cancel": {},
  "POST /v1/rollouts/ro_1/tool-results": { tool_call_id: "c", tool: "t", succeeded: true },
  "POST /v1/rollouts/drop": { ids: ["ro_1"], reason: "stale" },
  "POST /v1/rewards": { rollout_id: "ro_1", name: "x", value: 1 },
  "POST /v1/rewards/recompute": { run_id: "r", settings: { alpha: 0.5 } },
  "POST /v1/feedback": { rollout_id: "ro_1", value: 1 },
  "POST /v1/policies": { name: "p", artifact: "a", sha256: SHA256 },
  "POST /v1/policies/p/route": { version: 0 },
  "POST /v1/policies/p/retire": { versions: [1] },
  "POST /v1/runs": { id: "r", policy: "p", agent: "a", config: {} },
  "POST /v1/runs/r/metrics": { points: [{ step: 0, name: "n", value: 1 }] },
  "POST /v1/batches/claim": { batch_id: "b", run_id: "r", policy: "p", step: 0, groups: 1 },
  "POST /v1/batches/b/trained": {
    version: 1,
    parent_version: 0,
    kind: "adapter",
    artifact: "a",
    sha256: SHA256,
    metrics: { loss: 1 },
  },
  "POST /v1/batches/b/abandon": { reason: "stale" },
  "PUT /v1/agents/bodies": {
    policy: "flight",
    tools: { a: { weight: 0.5, success: { error_prefixes: ["x"] } } },
    models: { m: "policy:flight" },
    live: { redact: [{ path: "$.a.b" }] },
  },
  "POST /v1/agents/bodies/models": { models: { m: "policy:flight" } },
  "PUT /v1/providers/bodies": { base_url: "https://example.com/v1", key_env: "SOME_KEY" },
  "PUT /v1/prices": { model: "m", prompt_per_million: 1, completion_per_million: 1 },
  "PATCH /v1/tenant": { retention_days: 30 },
  "POST /v1/keys": { scope: "read" },
  "POST /v1/keys/0123456789abcdef/revoke": {},
  "POST /v1/traces": { resourceSpans: [] },
  "POST /v1/logs": { resourceLogs: [] },
  "POST /api/rollouts": [{ input: {}, config: { local: { env_map: { a: "b" } } }, metadata: { batch_idx: "3" } }],
  "POST /api/rollouts/status": ["agl-1"],
  "POST /api/rollouts/agl-1/attempt/0/events": { event_type: "x", data: {} },
  "PATCH /api/rollouts/agl-1": { status: { state: "running" } },
  "POST /api/models": [{ model: "m", endpoint: "https://example.com" }],
  "POST /proxy/rollout/agl-1/attempt/0/mode/train/openai/v1/chat/completions": {
    model: "m",
    messages: [{ role: "user", content: "hi" }],
  },
  "POST /proxy/pause": {},
  "POST /proxy/resume": {},
};

/** The route that a call such as `GET /v1/rollouts/ro_1?x=1` comes to; undefined where there is none. */
export function specOf(call: string): RouteSpec | undefined {
  const [method, target = ""] = call.split(" ");
  const [path = ""] = target.split("?");
  const found = ROUTES.filter((route) => route.method === method && patternOf(route.path).test(path));
  // `/v1/rollouts/drop` is no rollout's id.
  return found.find((route) => route.path === path) ?? found[0];
}

/** `GET /v1/rollouts/:id`, as a route is named where it is looked for. */
export function nameOf({ method, path }: RouteSpec): string {
  return `${method} ${path}`;
}

function patternOf(path: string): RegExp {
  const source = path
    .split("/")
    .map((part) => (part.includes("{") ? ".+" : part.startsWith(":") ? "[^/]+" : part.replaceAll(".", "\\.")))
    .join("/");
  return new RegExp(`^${source}$`);
}

/** Routes that some of these calls come to. */
export function routesOf(calls: readonly string[]): Set<string> {
  return new Set(calls.flatMap((call) => specOf(call) ?? []).map(nameOf));
}
