import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { publicKeys } from "#shared/tokens.ts";
import { writerOf, type Env } from "./config.ts";
import { partsOf, proveCaller, requestDbs, type Edge, type EdgeHono } from "./context.ts";
import { errorResponse } from "./http-errors.ts";
import type { ProxyDeps } from "./proxy/call.ts";
import { inferenceFetch } from "./proxy/inference-fetch.ts";
import { limits as limitsOf } from "./proxy/limits.ts";
import { LLM_ROUTES, type LlmRoute } from "./proxy/llm-routes.ts";
import { messagesDialect } from "./proxy/messages/messages.ts";
import { reachOf } from "./proxy/reach.ts";
import { gatheringWriter } from "./record/gather.ts";
import { agentRoutes } from "./routes/agents.ts";
import { aglProxyRoutes, aglRoutes } from "./routes/agl/routes.ts";
import { auditRoutes } from "./routes/audit.ts";
import { batchRoutes } from "./routes/batches.ts";
import { docsRoutes } from "./routes/docs.ts";
import { feedbackRoutes } from "./routes/feedback.ts";
import { keyRoutes } from "./routes/keys.ts";
import { metricRoutes } from "./routes/metrics.ts";
import { modelRoutes } from "./routes/models.ts";
import { logRoutes, traceRoutes } from "./routes/otlp.ts";
import { policyRoutes } from "./routes/policies.ts";
import { providerRoutes } from "./routes/providers.ts";
import { priceRoutes } from "./routes/prices.ts";
import { rewardRoutes } from "./routes/rewards.ts";
import { rolloutRoutes } from "./routes/rollouts.ts";
import { runRoutes } from "./routes/runs.ts";
import { sessionRoutes } from "./routes/session.ts";
import { subjectRoutes } from "./routes/subjects.ts";
import { taskRoutes } from "./routes/tasks.ts";
import { tenantRoutes } from "./routes/tenant.ts";
import { tokenRoutes } from "./routes/tokens.ts";
import { usageRoutes } from "./routes/usage.ts";
import { shardStates } from "./shard-states.ts";
import { withoutSniffing, withSecurityHeaders } from "./security-headers.ts";

/** A handler in front of everything: Worker's fetch, without the catch-all of the runtime. */
export type EdgeFetch = (request: Request, env: Env, context: ExecutionContext) => Promise<Response>;

/** Every route of the edge: the LLM wire, then the rest through Hono; wire.ts has the table. */
export function edgeApp(edge: Edge): EdgeFetch {
  const app = apiRoutes(edge);
  return async (request, env, context) => {
    // Matched by hand: a router and its middleware cost a tenth of a recorded call.
    const route = request.method === "POST" ? LLM_ROUTES.get(pathOf(request.url)) : undefined;
    if (route !== undefined) return withoutSniffing(await llmCall(edge, { request, env, context, route }));
    return withSecurityHeaders(await app.fetch(request, env, context));
  };
}

/** The path of an absolute URL; parsing the rest of it is not free either. */
function pathOf(url: string): string {
  const from = url.indexOf("/", url.indexOf("//") + 2);
  const query = url.indexOf("?", from);
  return query === -1 ? url.slice(from) : url.slice(from, query);
}

interface Incoming {
  readonly request: Request;
  readonly env: Env;
  readonly context: ExecutionContext;
  readonly route: LlmRoute;
}

async function llmCall(edge: Edge, { request, env, context, route }: Incoming): Promise<Response> {
  const { config, counters, now } = edge;
  try {
    // Admission looks at revocation together with the rollout's state, in one question.
    const dbOf = requestDbs(config, env);
    const waitUntil = (work: Promise<unknown>): void => context.waitUntil(work);
    const principal = await edge.authenticate(request, { dbOf, now: now(), later: waitUntil });
    const { tenantId } = principal;
    const { shard, directory, sessions, admission, resolver, prompts, providerMemory } = partsOf(edge, tenantId);
    const db = (): StoreDb => dbOf(shard.index);
    const tenant = await directory.of({ tenantId, db, now: now(), later: waitUntil });
    const { agents } = tenant;
    const limits = limitsOf();
    const writer = gatheringWriter(shard, () => writerOf(env, shard.index), limits);
    const deps: ProxyDeps = {
      servers: edge.servers,
      reach: reachOf(env, config, { dbOf, now, later: waitUntil }),
      callerOf: ({ headers }, body) =>
        sessions.callerOf({ headers, body, principal, agents, db, writer, now: now(), later: waitUntil }),
      issued: (caller, ids, at) => sessions.issued(caller, ids, at),
      agents,
      route: (agent, modelAsked) => tenant.route(agent, modelAsked),
      db,
      writer,
      admission,
      resolver,
      prompts,
      counters,
      fetch: inferenceFetch(env, config, now),
      fetchProvider: (input, init) => fetch(input, init),
      providerMemory,
      now,
      limits,
      waitUntil,
    };
    return await route.answer(deps, request);
  } catch (thrown) {
    return route.errorResponse(thrown);
  }
}

function apiRoutes(edge: Edge): Hono<EdgeHono> {
  const app = new Hono<EdgeHono>();
  app.onError((thrown) => errorResponse(thrown));

  app.use(async (c, next) => {
    c.set("edge", edge);
    await next();
  });
  // `status` is what Agent Lightning's clients read.
  app.get("/healthz", (c) => c.json({ ok: true, status: "ok" }));
  app.get("/healthz/shards", async (c) => c.json({ shards: await shardStates(c.env, edge.config) }));
  app.get("/healthz/inference", (c) =>
    c.json({ servers: edge.servers.states().map(({ server, inService }) => ({ server, in_service: inService })) }),
  );
  app.get("/.well-known/jwks.json", (c) =>
    c.json(publicKeys(edge.config.signingKeys), 200, { "cache-control": "public, max-age=60" }),
  );
  app.route("/metrics", metricRoutes);
  app.route("/v1/session", sessionRoutes);
  app.route("/", docsRoutes);

  // Anthropic's clients read no other error than theirs.
  app.all("/v1/messages/*", (c) => messagesDialect.errorResponse(noRoute(c.req)));
  app.use("/v1/*", async (c, next) => {
    await proveCaller(c);
    await next();
  });
  app.route("/v1/models", modelRoutes);
  app.route("/v1/tokens", tokenRoutes);
  app.route("/v1/tasks", taskRoutes);
  app.route("/v1/rollouts", rolloutRoutes);
  app.route("/v1/rewards", rewardRoutes);
  app.route("/v1/feedback", feedbackRoutes);
  app.route("/v1/subjects", subjectRoutes);
  app.route("/v1/policies", policyRoutes);
  app.route("/v1/runs", runRoutes);
  app.route("/v1/batches", batchRoutes);
  app.route("/v1/usage", usageRoutes);
  app.route("/v1/prices", priceRoutes);
  app.route("/v1/tenant", tenantRoutes);
  app.route("/v1/keys", keyRoutes);
  app.route("/v1/agents", agentRoutes);
  app.route("/v1/providers", providerRoutes);
  app.route("/v1/audit", auditRoutes);
  app.route("/v1/traces", traceRoutes);
  app.route("/v1/logs", logRoutes);
  app.all("/v1/*", (c) => {
    throw noRoute(c.req);
  });

  app.route("/api", aglRoutes);
  app.route("/proxy", aglProxyRoutes);

  app.get("*", async (c) =>
    c.env.ASSETS === undefined
      ? c.text("This edge was deployed without its page.\n", 404)
      : c.env.ASSETS.fetch(c.req.raw),
  );
  app.notFound((c) => errorResponse(noRoute(c.req)));
  return app;
}

function noRoute({ method, path }: { readonly method: string; readonly path: string }): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no route ${method} ${path}`);
}
