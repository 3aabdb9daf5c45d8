import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import { recordReward } from "#shared/store/rewards.ts";
import { transact } from "#shared/store/statement.ts";
import { rewardInputSchema, snakeKeys } from "#shared/wire.ts";
import { recomputeInputSchema } from "#shared/wire-feedback.ts";
import { requireOwnerOrScope, requireScope } from "../auth.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { checkEvaluator } from "../record/evaluators/table.ts";
import { evaluatorDeps } from "../record/evaluators/wiring.ts";
import { recomputePage } from "../record/recompute.ts";
import { jsonBody } from "./json-body.ts";
import { existing } from "./rollouts.ts";

/** What an agent may say of itself; the rest is said by this system and its trainer. */
const OWN_SOURCES = new Set(["explicit", "feedback"]);

/** `/v1/rewards`: numbers for a rollout or one of its calls, the same key twice is one reward; and rewards computed anew. */
export const rewardRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const input = await jsonBody(c.req.raw, rewardInputSchema);
    const { source, name, value, callId } = input;
    const rolloutId = input.rolloutId ?? principal.rollout?.rolloutId;
    if (rolloutId === undefined) {
      throw new FulgurError(
        "ERR_INVALID_REQUEST",
        "rollout_id is missing; only a rollout's own token may leave it out",
      );
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
    // Prefixed for an agent, or it could take the key of a signal that this system is about to record.
    const given = own === undefined ? input.key : input.key && `own:${rolloutId}:${input.key}`;
    const key = given ?? [source, name, rolloutId, attempt, callId ?? ""].join(":");
    const id = newId("reward");
    const reward = { id, tenantId, key, rolloutId, attempt, callId, source, name, value, createdAt: parts.now() };
    const keptId = await transact(writer, recordReward(reward));
    return c.json({ id: keptId, created: keptId === id });
  })
  .post("/recompute", async (c) => {
    const { parts, principal, db, writer } = c.var;
    requireScope(principal, "trainer");
    const input = await jsonBody(c.req.raw, recomputeInputSchema);
    if (input.settings.evaluator !== undefined) checkEvaluator(input.settings.evaluator);
    const { agents } = await tenantDirectory(c);
    const evaluators = evaluatorDeps(c.env, { ...parts, later: (work) => c.executionCtx.waitUntil(work) });
    const deps = { db: db(), writer, agents, evaluators, now: parts.now };
    return c.json(snakeKeys(await recomputePage(deps, principal.tenantId, input)));
  });
