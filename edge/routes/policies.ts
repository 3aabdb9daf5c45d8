import { Hono } from "hono";
import { createPolicy, listPolicies, routePolicy } from "#shared/store/policies.ts";
import { transact } from "#shared/store/statement.ts";
import { policyInputSchema, routeBodySchema, snakeKeys } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";

/** `/v1/policies`: lines of weights, and which version answers now. */
export const policyRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const policy = await jsonBody(c.req.raw, policyInputSchema);
    await transact(writer, createPolicy({ ...policy, tenantId: principal.tenantId }, parts.now()));
    return c.json({ ok: true });
  })
  .get("/", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    const policies = await listPolicies(db(), principal.tenantId);
    return c.json({
      policies: policies.map(({ tenantId: _tenant, versions, ...policy }) => ({
        ...snakeKeys(policy),
        versions: versions.map(({ tenantId: _of, policy: _name, ...version }) => snakeKeys(version)),
      })),
    });
  })
  .post("/:name/route", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const name = c.req.param("name");
    const { version } = await jsonBody(c.req.raw, routeBodySchema);
    await transact(writer, routePolicy(principal.tenantId, name, version));
    parts.resolver.forget(principal.tenantId, name);
    return c.json({ ok: true });
  });
