import { Hono } from "hono";
import { aglPauseState, pauseAgl, resumeAgl, type AglPauseState } from "#shared/store/agl-pause.ts";
import { transact } from "#shared/store/statement.ts";
import { requireScope } from "../../auth.ts";
import type { EdgeHono } from "../../context.ts";
import { parseBody } from "./parse.ts";
import { pauseSchema } from "./wire.ts";

/** `/proxy/pause`, `/proxy/resume`, `/proxy/state`: a trainer holds new calls back while weights change. */
export const aglPauseRoutes = new Hono<EdgeHono>()
  .post("/pause", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const { retry_after_seconds: retryAfterSeconds, reason } = await parseBody(c.req.raw, pauseSchema);
    const paused = pauseAgl(principal.tenantId, { retryAfterSeconds, reason }, parts.now());
    return c.json(stateView(await transact(writer, paused)));
  })
  .post("/resume", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    return c.json(stateView(await transact(writer, resumeAgl(principal.tenantId, parts.now()))));
  })
  .get("/state", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    // Through the writer, so that it comes after every call that has begun or ended.
    return c.json(stateView(await transact(writer, aglPauseState(principal.tenantId, parts.now()))));
  });

function stateView({ paused, retryAfterSeconds: retry_after_seconds, reason, inflight }: AglPauseState): object {
  return { paused, retry_after_seconds, reason, inflight };
}
