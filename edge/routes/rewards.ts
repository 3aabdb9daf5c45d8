import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import { recordRewards } from "#shared/store/rewards.ts";
import { lastRow, textOf } from "#shared/store/statement.ts";
import { rewardInputSchema } from "#shared/wire.ts";
import { requireOwnerOrScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { jsonBody } from "./json-body.ts";
import { existing } from "./rollouts.ts";

/** What an agent may say of itself; the rest is said by this system and its trainer. */
const OWN_SOURCES = new Set(["explicit", "feedback"]);

/** `/v1/rewards`: numbers for a rollout or one of its calls; the same key twice is one reward. */
export const rewardRoutes = new Hono<EdgeHono>().post("/", async (c) => {
  const { parts, principal, db, writer } = c.var;
  const input = await jsonBody(c.req.raw, rewardInputSchema);
  const { source, name, value, callId } = input;
  const rolloutId = input.rolloutId ?? principal.rollout?.rolloutId;
  if (rolloutId === undefined) {
    throw new FulgurError("ERR_INVALID_REQUEST", "rollout_id is missing; only a rollout's own token may leave it out");
  }
  requireOwnerOrScope(principal, rolloutId, "trainer");
  const own = principal.rollout;
  if (own !== undefined && !OWN_SOURCES.has(source)) {
    throw new FulgurError(
      "ERR_FORBIDDEN",
      `a rollout's own token may give explicit and feedback rewards, not ${source}`,
    );
  }
  const { tenantId } = principal;
  const attempt = own?.attempt ?? (await existing(db(), tenantId, rolloutId)).attempt;
  const key = input.key ?? [source, name, rolloutId, attempt, callId ?? ""].join(":");
  const id = newId("reward");
  const reward = { id, tenantId, key, rolloutId, attempt, callId, source, name, value, createdAt: parts.now() };
  const kept = lastRow(
    await writer.transact([
      ...recordRewards([reward]),
      { sql: "select id from rewards where tenant_id = ? and key = ?", args: [tenantId, key] },
    ]),
  );
  const keptId = kept === undefined ? id : textOf(kept, "id");
  return c.json({ id: keptId, created: keptId === id });
});
