import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { newKey } from "#shared/keys.ts";
import { audited, auditedIfChanged } from "#shared/store/audit.ts";
import { createKey, listKeys, readKey, revokeKey, revokeTokensOfKey, type StoredKey } from "#shared/store/keys.ts";
import { MAX_TTL_SECONDS } from "#shared/tokens.ts";
import { snakeKeys } from "#shared/wire.ts";
import { keyInputSchema } from "#shared/wire-access.ts";
import { requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";

/** The longest that a token which a key has minted is taken, tolerance for clocks included. */
const TOKEN_LIFE_MS = (MAX_TTL_SECONDS + 60) * 1000;

/** `/v1/keys`: long-lived keys, made (and shown once), listed, revoked. */
export const keyRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "admin");
    const { scope, agent, label, ratePerMinute } = await jsonBody(c.req.raw, keyInputSchema);
    const now = parts.now();
    const { id, key, hash } = await newKey(parts.shard.index);
    const { tenantId } = principal;
    const row = { id, tenantId, hash, scope, agent, label, ratePerMinute, createdAt: now, revokedAt: null };
    const detail = { scope, agent, label, rate_per_minute: ratePerMinute };
    await writer.transact([
      ...createKey(row),
      audited({ by: principal, action: "key.created", target: id, detail, now }),
    ]);
    return c.json({ ...keyView(row), key }, 200, { "cache-control": "no-store" });
  })
  .get("/", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "admin");
    return c.json({ keys: (await listKeys(db(), principal.tenantId)).map(keyView) });
  })
  .post("/:id/revoke", async (c) => {
    const { parts, principal, db, writer } = c.var;
    requireScope(principal, "admin");
    const id = keyId(c.req.param("id"));
    if ((await readKey(db(), principal.tenantId, id)) === undefined) {
      throw new FulgurError("ERR_NOT_FOUND", `there is no key ${id}; GET /v1/keys lists those there are`);
    }
    const now = parts.now();
    const { tenantId } = principal;
    const [, , minted = []] = await writer.transact([
      revokeKey(tenantId, id, now),
      auditedIfChanged({ by: principal, action: "key.revoked", target: id, now }),
      revokeTokensOfKey({ tenantId, id }, { now, lifeMs: TOKEN_LIFE_MS }),
    ]);
    parts.keyAuth.note(id, now);
    for (const { jti } of minted) parts.revocations.note({ tenantId, jti: String(jti) }, now);
    return c.json({ ok: true });
  });

function keyView({ tenantId: _tenant, hash: _hash, ...shown }: StoredKey): Record<string, unknown> {
  return snakeKeys(shown);
}

/** People copy `fk_<id>` from a key as easily as the id. */
function keyId(given: string): string {
  return given.replace(/^fk_/, "");
}
