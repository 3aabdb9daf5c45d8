import { Hono } from "hono";
import { deleteAglModels, registerAglModels } from "#shared/store/agl-models.ts";
import { requireScope } from "../../auth.ts";
import type { EdgeHono } from "../../context.ts";
import { parseBody } from "./parse.ts";
import { modelsSchema } from "./wire.ts";

/**
 * `/api/models`: where a trainer says under which name its inference endpoints serve. Any text is taken; whether the edge
 * may call there is asked when it does (endpoint.ts).
 */
export const aglModelRoutes = new Hono<EdgeHono>()
  .use(async (c, next) => {
    requireScope(c.var.principal, "trainer");
    await next();
  })
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    const models = await parseBody(c.req.raw, modelsSchema);
    if (models.length > 0) await writer.transact(registerAglModels(principal.tenantId, models, parts.now()));
    return c.json(models, 201);
  })
  .delete("/", async (c) => {
    const { principal, writer } = c.var;
    await writer.transact(deleteAglModels(principal.tenantId));
    return c.json({ status: "ok" });
  });
