import { Hono } from "hono";
import { audited } from "#shared/store/audit.ts";
import { listPrices, putPrice } from "#shared/store/metering.ts";
import { dayOf } from "#shared/store/usage.ts";
import { priceInputSchema } from "#shared/wire-metering.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";

/** `/v1/prices`: the versioned price list; a new price holds from its day on and leaves earlier days alone. */
export const priceRoutes = new Hono<EdgeHono>()
  .get("/", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    const prices = await listPrices(db(), principal.tenantId);
    return c.json({ prices: prices.map(({ valid_from: from, ...price }) => ({ ...price, from: dayOf(from) })) });
  })
  .put("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const price = await jsonBody(c.req.raw, priceInputSchema);
    const now = parts.now();
    const from = price.from ?? dayOf(now);
    await writer.transact([
      ...putPrice({
        tenantId: principal.tenantId,
        model: price.model,
        validFrom: Date.parse(from),
        promptPerMillion: price.prompt_per_million,
        completionPerMillion: price.completion_per_million,
      }),
      audited({ by: principal, action: "price.set", target: price.model, detail: { ...price, from }, now }),
    ]);
    return c.json({ ...price, from });
  });
