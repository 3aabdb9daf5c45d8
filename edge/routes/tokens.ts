import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import { audited } from "#shared/store/audit.ts";
import { startSelfRollout } from "#shared/store/rollouts.ts";
import { revokeToken, rolloutJti } from "#shared/store/tokens.ts";
import { MAX_TTL_SECONDS, mintToken, type KeySet } from "#shared/tokens.ts";
import { capsSchema, tokenRequestSchema } from "#shared/wire.ts";
import { revocationSchema } from "#shared/wire-access.ts";
import { requireScope } from "../auth.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";
import { requireAgent, requirePinnable } from "./rollouts.ts";
import { requireKeyAgent } from "./speaker.ts";

/** How long a whole rollout's revocation is kept: no token lives longer. */
const LONGEST_LIFE_MS = (MAX_TTL_SECONDS + 60) * 1000;

/** `/v1/tokens`: minted for an agent that starts by itself (with a new rollout) or for scopes; revoked. */
export const tokenRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const { agent, mode, scopes, pin, ttlSeconds, caps } = await jsonBody(c.req.raw, tokenRequestSchema);
    const { tenantId } = principal;
    const { signingKeys } = parts.config;
    const now = parts.now();
    const jti = crypto.randomUUID();
    if (scopes !== undefined && agent === undefined && mode === undefined) {
      requireScope(principal, "admin");
      const granted = await grant(signingKeys, { tenantId, scopes, ttlSeconds, jti, now });
      const detail = { scopes, expires_at: granted.expires_at };
      await writer.append([[audited({ by: principal, action: "token.minted", target: jti, detail, now })]]);
      return c.json(granted);
    }
    if (scopes !== undefined || agent === undefined || mode === undefined) {
      requireScope(principal, "admin");
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        "a token is for an agent and a mode, or for scopes; send one of the two",
      );
    }
    // Who may run agents on live traffic may have a token for it; what trains is the trainer's to start.
    requireScope(principal, mode === "live" ? "agent" : "trainer");
    requireKeyAgent(principal, agent);
    requireAgent((await tenantDirectory(c)).agents, agent);
    await requirePinnable(db(), tenantId, [pin]);
    const rolloutId = newId("rollout");
    const rollout = { rolloutId, attempt: 1, agent, mode, pin, caps: caps ?? capsSchema.parse({}) };
    const granted = await grant(signingKeys, { tenantId, scopes: ["call"], ttlSeconds, rollout, jti, now });
    const detail = { rollout_id: rolloutId, agent, mode, expires_at: granted.expires_at };
    await writer.transact([
      ...startSelfRollout(
        { id: rolloutId, tenantId, agent, mode, pin, keyId: principal.keyId ?? null },
        now,
        granted.expires_at,
      ),
      audited({ by: principal, action: "token.minted", target: jti, detail, now }),
    ]);
    return c.json(granted);
  })
  .post("/revoke", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const wanted = await jsonBody(c.req.raw, revocationSchema);
    const now = parts.now();
    const { tenantId } = principal;
    const ofRollout = "rolloutId" in wanted;
    const jti = ofRollout ? rolloutJti(wanted.rolloutId) : wanted.jti;
    const expiresAt = ofRollout ? now + LONGEST_LIFE_MS : wanted.expiresAt;
    await writer.append([
      [
        ...revokeToken({ jti, tenantId, expiresAt }, now),
        audited({
          by: principal,
          action: ofRollout ? "rollout.tokens_revoked" : "token.revoked",
          target: ofRollout ? wanted.rolloutId : jti,
          now,
        }),
      ],
    ]);
    parts.revocations.note({ tenantId, jti }, now);
    if (ofRollout) parts.admission.forget(wanted.rolloutId);
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
