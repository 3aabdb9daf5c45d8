import { Hono } from "hono";
import { auditedIfChanged } from "#shared/store/audit.ts";
import { createPolicy, listPolicies, retireVersions, routePolicy } from "#shared/store/policies.ts";
import { policyInputSchema, retireBodySchema, routeBodySchema, snakeKeys } from "#shared/wire.ts";
import { versionName } from "#shared/words.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";

/** `/v1/policies`: lines of weights, and which version answers now. */
export const policyRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const policy = await jsonBody(c.req.raw, policyInputSchema);
    const now = parts.now();
    const { statements, read } = createPolicy({ ...policy, tenantId: principal.tenantId }, now);
    const [insert, ...others] = statements;
    const deed = { by: principal, action: "policy.registered", target: policy.name, now } as const;
    const rows = await writer.transact([
      ...(insert === undefined ? [] : [insert, auditedIfChanged({ ...deed, detail: { sha256: policy.sha256 } })]),
      ...others,
    ]);
    read(rows);
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
    const { statements, read } = routePolicy(principal.tenantId, name, version);
    const deed = { by: principal, action: "policy.routed", target: name, now: parts.now() } as const;
    read(await writer.transact([...statements, auditedIfChanged({ ...deed, detail: { version } })]));
    parts.resolver.forget(principal.tenantId, name);
    return c.json({ ok: true });
  })
  .post("/:name/retire", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const name = c.req.param("name");
    const { versions } = await jsonBody(c.req.raw, retireBodySchema);
    const now = parts.now();
    const { statements, read } = retireVersions(principal.tenantId, name, { versions, now });
    const [retire, ...others] = statements;
    const deed = { by: principal, action: "policy.retired", target: name, now, detail: { versions } } as const;
    const rows = await writer.transact([...(retire === undefined ? [] : [retire, auditedIfChanged(deed)]), ...others]);
    const retired = read(rows);
    for (const version of retired) parts.resolver.forget(principal.tenantId, versionName(name, version));
    return c.json({ retired });
  });
