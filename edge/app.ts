import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { publicKeys } from "#shared/tokens.ts";
import { requireRollout } from "./auth.ts";
import { fetchBy, writerOf, type Env } from "./config.ts";
import { requestDb, type EdgeHono, type EdgeParts } from "./context.ts";
import { errorResponse } from "./http-errors.ts";
import type { ProxyDeps } from "./proxy/call.ts";
import { chatCompletions } from "./proxy/chat.ts";
import { batchRoutes } from "./routes/batches.ts";
import { metricRoutes } from "./routes/metrics.ts";
import { modelRoutes } from "./routes/models.ts";
import { policyRoutes } from "./routes/policies.ts";
import { rewardRoutes } from "./routes/rewards.ts";
import { rolloutRoutes } from "./routes/rollouts.ts";
import { runRoutes } from "./routes/runs.ts";
import { sessionRoutes } from "./routes/session.ts";
import { taskRoutes } from "./routes/tasks.ts";
import { tokenRoutes } from "./routes/tokens.ts";
import { usageRoutes } from "./routes/usage.ts";

/** A handler in front of everything: Worker's fetch, without the catch-all of the runtime. */
export type EdgeFetch = (request: Request, env: Env, context: ExecutionContext) => Promise<Response>;

/** Every route of the edge: the LLM wire, then the rest through Hono; wire.ts has the table. */
export function edgeApp(parts: EdgeParts): EdgeFetch {
  const app = apiRoutes(parts);
  return async (request, env, context) => {
    // Matched by hand: a router and its middleware cost a tenth of a recorded call.
    if (request.method === "POST" && pathOf(request.url) === "/v1/chat/completions") {
      return llmCall(parts, { request, env, context });
    }
    return app.fetch(request, env, context);
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
}

async function llmCall(parts: EdgeParts, { request, env, context }: Incoming): Promise<Response> {
  const { config, admission, resolver, counters, now } = parts;
  try {
    // Admission looks at revocation together with the rollout's state, in one question.
    const principal = await parts.authenticate(request, now());
    const deps: ProxyDeps = {
      inferenceUrl: config.inferenceUrl,
      agents: config.agents,
      db: requestDb(config, env),
      writer: writerOf(env),
      admission,
      resolver,
      counters,
      fetch: fetchBy(env.INFERENCE),
      now,
      waitUntil: (work) => context.waitUntil(work),
    };
    return await chatCompletions(deps, { principal, rollout: requireRollout(principal) }, request);
  } catch (thrown) {
    return errorResponse(thrown);
  }
}

function apiRoutes(parts: EdgeParts): Hono<EdgeHono> {
  const app = new Hono<EdgeHono>();
  app.onError((thrown) => errorResponse(thrown));

  app.use(async (c, next) => {
    c.set("parts", parts);
    c.set("db", requestDb(parts.config, c.env));
    c.set("writer", writerOf(c.env));
    await next();
  });
  app.get("/healthz", (c) => c.json({ ok: true }));
  app.get("/.well-known/jwks.json", (c) =>
    c.json(publicKeys(parts.config.signingKeys), 200, { "cache-control": "public, max-age=60" }),
  );
  app.route("/metrics", metricRoutes);
  app.route("/v1/session", sessionRoutes);

  app.use("/v1/*", async (c, next) => {
    const now = parts.now();
    const principal = await parts.authenticate(c.req.raw, now);
    await parts.revocations.check(principal, c.var.db, now);
    c.set("principal", principal);
    await next();
  });
  app.route("/v1/models", modelRoutes);
  app.route("/v1/tokens", tokenRoutes);
  app.route("/v1/tasks", taskRoutes);
  app.route("/v1/rollouts", rolloutRoutes);
  app.route("/v1/rewards", rewardRoutes);
  app.route("/v1/policies", policyRoutes);
  app.route("/v1/runs", runRoutes);
  app.route("/v1/batches", batchRoutes);
  app.route("/v1/usage", usageRoutes);
  app.all("/v1/*", (c) => {
    throw new FulgurError("ERR_NOT_FOUND", `there is no route ${c.req.method} ${c.req.path}`);
  });

  app.get("*", async (c) =>
    c.env.ASSETS === undefined
      ? c.text("This edge was deployed without its page.\n", 404)
      : c.env.ASSETS.fetch(c.req.raw),
  );
  app.notFound((c) =>
    errorResponse(new FulgurError("ERR_NOT_FOUND", `there is no route ${c.req.method} ${c.req.path}`)),
  );
  return app;
}
