import { Hono } from "hono";
import { abandonBatch, claimGroups, markTrained } from "#shared/store/batches.ts";
import { transact } from "#shared/store/statement.ts";
import { abandonBodySchema, batchClaimSchema, batchTrainedSchema } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";

/** `/v1/batches`: which rollouts train into which version; each change is one transaction. */
export const batchRoutes = new Hono<EdgeHono>()
  .post("/claim", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const claim = await jsonBody(c.req.raw, batchClaimSchema);
    const rolloutIds = await transact(writer, claimGroups({ ...claim, tenantId: principal.tenantId }, parts.now()));
    return c.json({ batch_id: claim.batchId, rollout_ids: rolloutIds });
  })
  .post("/:id/trained", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const trained = await jsonBody(c.req.raw, batchTrainedSchema);
    const batchId = c.req.param("id");
    await transact(writer, markTrained({ ...trained, batchId, tenantId: principal.tenantId }, parts.now()));
    return c.json({ ok: true });
  })
  .post("/:id/abandon", async (c) => {
    const { principal, writer } = c.var;
    requireScope(principal, "trainer");
    const { reason } = await jsonBody(c.req.raw, abandonBodySchema);
    await transact(writer, abandonBatch(principal.tenantId, c.req.param("id"), { reason }));
    return c.json({ ok: true });
  });
