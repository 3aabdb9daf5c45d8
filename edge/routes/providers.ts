import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { audited, auditedIfChanged } from "#shared/store/audit.ts";
import { deleteProvider, listProviders, putProvider, type StoredProvider } from "#shared/store/providers.ts";
import { providerInputSchema, providerNameSchema } from "#shared/wire-access.ts";
import { requireScope } from "../auth.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { outboundUrl } from "../outbound-url.ts";
import { sealKey } from "../provider-key.ts";
import { checked, jsonBody } from "./json-body.ts";

/** `/v1/providers`: frozen upstreams. Their keys go in and never come out. */
export const providerRoutes = new Hono<EdgeHono>()
  .get("/", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    return c.json({ providers: (await listProviders(db(), principal.tenantId)).map(providerView) });
  })
  .get("/:name", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    const name = c.req.param("name");
    const found = (await listProviders(db(), principal.tenantId)).find((provider) => provider.name === name);
    if (found === undefined) throw missing(name);
    return c.json(providerView(found));
  })
  .put("/:name", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const name = checked(providerNameSchema, c.req.param("name"), "the provider's name");
    const given = await jsonBody(c.req.raw, providerInputSchema);
    const { tenantId } = principal;
    const baseUrl = outboundUrl(given.baseUrl, {
      what: `the base_url of provider ${name}`,
      ...parts.config.outbound,
    });
    const { keyEnv } = given;
    // One clear sentence now and not a failure of every call later.
    if (given.key === null && keyEnv !== null && !parts.config.providerKeys.has(keyEnv)) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        `the edge has no variable ${keyEnv} that it lends to providers (PROVIDER_KEY_ENVS), and no key was sent; set ${keyEnv} where the command runs, or on the edge`,
      );
    }
    // Or whoever administers a tenant could have the edge's own key sent to an address of theirs.
    const { local, bases } = parts.config.outbound;
    if (given.key === null && keyEnv !== null && !local && bases === undefined) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        `this edge lends ${keyEnv} to no address, since it has no list of those that it may call (UPSTREAM_BASES); send the key itself`,
      );
    }
    const now = parts.now();
    const keySealed = given.key === null ? null : await sealKey(parts.config, { tenantId, name, baseUrl }, given.key);
    const provider = { tenantId, name, baseUrl, keyEnv, keySealed, updatedAt: now };
    const detail = { base_url: baseUrl, key: keyKind(provider), key_env: keyEnv };
    await writer.transact([
      ...putProvider(provider),
      audited({ by: principal, action: "provider.put", target: name, detail, now }),
    ]);
    parts.directory.forget(tenantId);
    return c.json(providerView(provider));
  })
  .delete("/:name", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const name = c.req.param("name");
    const { tenantId } = principal;
    parts.directory.forget(tenantId);
    const { agents } = await tenantDirectory(c);
    const users = Object.entries(agents)
      .filter(([, { models }]) => Object.values(models).some((target) => target.startsWith(`provider:${name}/`)))
      .map(([agent]) => agent);
    if (users.length > 0) {
      throw new FulgurError(
        "ERR_CONFLICT",
        `provider ${name} is in use: ${users.join(", ")} map models to it; map those elsewhere first`,
      );
    }
    const now = parts.now();
    const [deleted = []] = await writer.transact([
      deleteProvider(tenantId, name),
      auditedIfChanged({ by: principal, action: "provider.deleted", target: name, now }),
    ]);
    parts.directory.forget(tenantId);
    if (deleted.length === 0) throw missing(name);
    return c.json({ ok: true });
  });

function keyKind({ keySealed, keyEnv }: StoredProvider): "sealed" | "env" | "none" {
  return keySealed !== null ? "sealed" : keyEnv !== null ? "env" : "none";
}

function providerView(provider: StoredProvider): Record<string, unknown> {
  const { name, baseUrl, keyEnv, updatedAt } = provider;
  return { name, base_url: baseUrl, key: keyKind(provider), key_env: keyEnv, updated_at: updatedAt };
}

function missing(name: string): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no provider ${name}; GET /v1/providers lists those there are`);
}
