import { Hono } from "hono";
import { proveCaller, type EdgeHono } from "../../context.ts";
import { detailResponse, llmErrorResponse, methodNotAllowed } from "./errors.ts";
import { aglEventRoutes } from "./events.ts";
import { aglModelRoutes } from "./models.ts";
import { aglPauseRoutes } from "./pause.ts";
import { proxiedCall } from "./proxied.ts";
import { aglRolloutRoutes } from "./rollouts.ts";

/**
 * The REST surface of microsoft/agent-lightning 1.0, so that its controller, clients and verl trainer work against this
 * edge; its ids are the client's and its errors are `{ detail }`.
 */

/** `/api`. */
export const aglRoutes = app()
  .route("/rollouts", aglEventRoutes)
  .route("/rollouts", aglRolloutRoutes)
  .route("/models", aglModelRoutes)
  .all("/rollouts", (c) => methodNotAllowed(c.req.method, ["GET", "POST"]))
  .all("/rollouts/:id", (c) => methodNotAllowed(c.req.method, ["GET", "PATCH", "DELETE"]))
  .all("/rollouts/:id/events", (c) => methodNotAllowed(c.req.method, ["GET"]))
  .all("/rollouts/:id/attempt/:attempt/events", (c) => methodNotAllowed(c.req.method, ["POST"]))
  .all("/models", (c) => methodNotAllowed(c.req.method, ["POST", "DELETE"]))
  .all("*", (c) => c.json({ detail: `there is no route ${c.req.method} ${c.req.path}` }, 404));

/** `/proxy`. */
export const aglProxyRoutes = app()
  .route("/", aglPauseRoutes)
  .post("/rollout/:id/attempt/:attempt/mode/:mode/openai/v1/:path{.+}", async (c) => {
    const { id: rolloutId, attempt: attemptId, mode, path: upstreamPath } = c.req.param();
    try {
      return await proxiedCall(c, { rolloutId, attemptId, mode, upstreamPath });
    } catch (thrown) {
      return llmErrorResponse(thrown);
    }
  })
  .all("/pause", (c) => methodNotAllowed(c.req.method, ["POST"]))
  .all("/resume", (c) => methodNotAllowed(c.req.method, ["POST"]))
  .all("/state", (c) => methodNotAllowed(c.req.method, ["GET"]))
  .all("*", (c) => c.json({ detail: `there is no route ${c.req.method} ${c.req.path}` }, 404));

function app(): Hono<EdgeHono> {
  return new Hono<EdgeHono>()
    .onError((thrown) => detailResponse(thrown))
    .use(async (c, next) => {
      await proveCaller(c);
      await next();
    });
}
