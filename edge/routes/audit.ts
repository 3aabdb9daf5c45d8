import { Hono } from "hono";
import { z } from "zod";
import { listAudit } from "#shared/store/audit.ts";
import { snakeKeys } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { query } from "./json-body.ts";

const querySchema = z.strictObject({
  limit: z.coerce.number().int().min(1).max(1000).default(100),
  before: z.string().max(128).optional(),
});

/** `/v1/audit`: who minted, revoked, promoted, deleted; newest first. */
export const auditRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { principal, db } = c.var;
  requireScope(principal, "admin");
  const { limit, before } = query(c.req.url, querySchema);
  const rows = await listAudit(db(), principal.tenantId, { limit, before });
  return c.json({
    entries: rows.map(({ tenantId: _tenant, ...entry }) => snakeKeys(entry)),
    next_before: rows.length === limit ? (rows.at(-1)?.id ?? null) : null,
  });
});
