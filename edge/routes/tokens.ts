import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import { startSelfRollout } from "#shared/store/rollouts.ts";
import { revokeToken } from "#shared/store/tokens.ts";
import { mintToken, type KeySet } from "#shared/tokens.ts";
import { capsSchema, revokeBodySchema, tokenRequestSchema } from "#shared/wire.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";
import { requireAgent } from "./rollouts.ts";

/** `/v1/tokens`: minted for an agent that starts by itself (with a new rollout) or for scopes; revoked. */
export const tokenRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const { agent, mode, scopes, pin, ttlSeconds, caps } = await jsonBody(c.req.raw, tokenRequestSchema);
    const { tenantId } = principal;
    const { signingKeys } = parts.config;
    const now = parts.now();
    if (scopes !== undefined && agent === undefined && mode === undefined) {
      return c.json(await grant(signingKeys, { tenantId, scopes, ttlSeconds, now }));
    }
    if (scopes !== undefined || agent === undefined || mode === undefined) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        "a token is for an agent and a mode, or for scopes; send one of the two",
      );
    }
    requireAgent(parts.config.agents, agent);
    const rolloutId = newId("rollout");
    const rollout = { rolloutId, attempt: 1, agent, mode, pin, caps: caps ?? capsSchema.parse({}) };
    const granted = await grant(signingKeys, { tenantId, scopes: ["call"], ttlSeconds, rollout, now });
    await writer.transact(startSelfRollout({ id: rolloutId, tenantId, agent, mode, pin }, now, granted.expires_at));
    return c.json(granted);
  })
  .post("/revoke", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const revoked = await jsonBody(c.req.raw, revokeBodySchema);
    const now = parts.now();
    await writer.append([revokeToken({ ...revoked, tenantId: principal.tenantId }, now)]);
    parts.revocations.note(revoked.jti, now);
    return c.json({ ok: true });
  });

/** A signed token as the wire gives it. */
export async function grant(
  keys: KeySet,
  options: Parameters<typeof mintToken>[1],
): Promise<{ token: string; rollout_id: string | null; expires_at: number }> {
  const { token, expiresAt } = await mintToken(keys, options);
  return { token, rollout_id: options.rollout?.rolloutId ?? null, expires_at: expiresAt };
}
