import { Hono } from "hono";
import { listPolicies } from "#shared/store/policies.ts";
import { versionName } from "#shared/words.ts";
import type { EdgeHono } from "../context.ts";

/** `/v1/models` as OpenAI's: each policy by its name and by the version that answers now. */
export const modelRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { principal, db } = c.var;
  const policies = await listPolicies(db(), principal.tenantId);
  const data = policies.flatMap(({ name, routeVersion, createdAt }) =>
    [name, versionName(name, routeVersion)].map((id) => ({
      id,
      object: "model",
      created: Math.floor(createdAt / 1000),
      owned_by: "fulgur",
    })),
  );
  return c.json({ object: "list", data });
});
