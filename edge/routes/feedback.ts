import { Hono } from "hono";
import { snakeKeys } from "#shared/wire.ts";
import { feedbackInputSchema } from "#shared/wire-feedback.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { findFeedbackTarget, takeFeedback } from "../record/feedback.ts";
import { ownOf } from "../record/reward.ts";
import { jsonBody } from "./json-body.ts";
import { requireKeyAgent, requireOwnerOrAgent } from "./speaker.ts";

/**
 * `POST /v1/feedback`: what a person says of a rollout, minutes or days later. That it comes too late, or for a rollout that
 * takes none, is an answer and no error: whoever collects feedback cannot know.
 */
export const feedbackRoutes = new Hono<EdgeHono>().post("/", async (c) => {
  const { parts, principal, db, writer } = c.var;
  const input = await jsonBody(c.req.raw, feedbackInputSchema);
  const { callId, rolloutId = callId === undefined ? principal.rollout?.rolloutId : undefined } = input;
  // Looked at first: who may not ask shall not learn which ids there are.
  requireOwnerOrAgent(principal, rolloutId ?? principal.rollout?.rolloutId ?? "");
  const about = await findFeedbackTarget(db(), principal.tenantId, {
    ...(rolloutId === undefined ? {} : { rolloutId }),
    ...(callId === undefined ? {} : { callId }),
  });
  const { rollout } = about.target;
  requireOwnerOrAgent(principal, rollout.id);
  requireKeyAgent(principal, rollout.agent);
  const settings = ownOf((await tenantDirectory(c)).agents, rollout.agent);
  const taken = await takeFeedback({ db: db(), writer, now: parts.now() }, about, { input, settings });
  return c.json(snakeKeys(taken));
});
