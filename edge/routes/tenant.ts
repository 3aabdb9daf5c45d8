import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { audited } from "#shared/store/audit.ts";
import { patchTenant, readTenantSettings } from "#shared/store/tenants.ts";
import { tenantPatchSchema } from "#shared/wire-tenant.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { outboundUrl } from "../outbound-url.ts";
import { jsonBody } from "./json-body.ts";

/** `/v1/tenant`: what holds for everything of a tenant: retention, budget, export, and what live calls do without a store. */
export const tenantRoutes = new Hono<EdgeHono>()
  .get("/", async (c) => {
    const { principal } = c.var;
    requireScope(principal, "read");
    return c.json({ id: principal.tenantId, settings: await settingsOf(c.var) });
  })
  .patch("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const patch = await jsonBody(c.req.raw, tenantPatchSchema);
    if (patch.otlp_export)
      outboundUrl(patch.otlp_export.url, { what: "the otlp_export.url", ...parts.config.outbound });
    const { tenantId } = principal;
    await writer.transact([
      ...patchTenant(tenantId, patch),
      // The names alone: an address may say more than an audit row should.
      audited({ by: principal, action: "tenant.set", target: tenantId, detail: Object.keys(patch), now: parts.now() }),
    ]);
    return c.json({ id: tenantId, settings: await settingsOf(c.var) });
  });

async function settingsOf({ principal, db }: EdgeHono["Variables"]) {
  const settings = await readTenantSettings(db(), principal.tenantId);
  if (settings === undefined) throw new FulgurError("ERR_NOT_FOUND", `there is no tenant ${principal.tenantId}`);
  return settings;
}
