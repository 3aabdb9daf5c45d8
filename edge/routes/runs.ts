import { Hono } from "hono";
import { putRun, readRuns, readSteps, recordMetrics } from "#shared/store/runs.ts";
import { metricsBodySchema, runInputSchema, snakeKeys, stepsQuerySchema } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody, query } from "./json-body.ts";

/** `/v1/runs`: training sessions, their steps and metrics. */
export const runRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const {
      evalBefore = null,
      evalAfter = null,
      finishedAt = null,
      ...run
    } = await jsonBody(c.req.raw, runInputSchema);
    const { tenantId } = principal;
    await writer.transact(putRun({ ...run, evalBefore, evalAfter, finishedAt, tenantId, createdAt: parts.now() }));
    return c.json({ ok: true });
  })
  .get("/", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    const runs = await readRuns(db(), principal.tenantId);
    return c.json({ runs: runs.map(({ tenantId: _tenant, ...run }) => snakeKeys(run)) });
  })
  .get("/:id/steps", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    const { since } = query(c.req.url, stepsQuerySchema);
    const steps = await readSteps(db(), principal.tenantId, c.req.param("id"), { since });
    return c.json({ steps: steps.map(({ tenantId: _tenant, runId: _run, ...step }) => snakeKeys(step)) });
  })
  .post("/:id/metrics", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const { points } = await jsonBody(c.req.raw, metricsBodySchema);
    const { tenantId } = principal;
    const runId = c.req.param("id");
    await writer.append([
      recordMetrics(points.map((point) => ({ ...point, runId, tenantId, createdAt: parts.now() }))),
    ]);
    return c.json({ ok: true });
  });
