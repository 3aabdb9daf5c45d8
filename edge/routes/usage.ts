import { Hono } from "hono";
import { readUsage } from "#shared/store/usage.ts";
import { snakeKeys } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";

/** `/v1/usage`: calls and tokens per day, model and mode. */
export const usageRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { principal, db } = c.var;
  requireScope(principal, "read");
  const rows = await readUsage(db(), principal.tenantId);
  return c.json({ usage: rows.map(({ tenantId: _tenant, ...row }) => snakeKeys(row)) });
});
