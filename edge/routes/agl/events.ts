import { Hono } from "hono";
import { newId } from "#shared/ids.ts";
import { newAglEventId, readAglEvents, recordAglEvent, type AglEvent } from "#shared/store/agl-events.ts";
import type { AglRollout } from "#shared/store/agl-rollouts.ts";
import { AGL_AGENT, rewardShadow } from "#shared/store/agl-shadow.ts";
import { readCalls, type Call } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import type { Json } from "#shared/tables.ts";
import { requireScope } from "../../auth.ts";
import type { EdgeHono } from "../../context.ts";
import { modelRequest } from "./model-request.ts";
import { parseBody, parseQuery } from "./parse.ts";
import { existingAgl, missing } from "./rollouts.ts";
import { tripletEvents } from "./triplet.ts";
import { requireKeyAgent } from "../speaker.ts";
import { eventsQuerySchema, eventView, newEventSchema } from "./wire.ts";

/** The attempt that is read where the controller has named none. */
const DEFAULT_ATTEMPT = "0";

/** What an attempt's agent says happened, and what happened. */
export const aglEventRoutes = new Hono<EdgeHono>()
  .post("/:id/attempt/:attempt/events", async (c) => {
    const { parts, principal, writer } = c.var;
    // Agents have the same key as their controller, or one of their own.
    requireScope(principal, principal.scopes.includes("agent") ? "agent" : "trainer");
    requireKeyAgent(principal, AGL_AGENT);
    const { tenantId } = principal;
    const { id: rolloutId, attempt: attemptId } = c.req.param();
    const { event_type: eventType, data } = await parseBody(c.req.raw, newEventSchema);
    const now = parts.now();
    const id = newAglEventId();
    const record = recordAglEvent({ id, tenantId, rolloutId, attemptId, eventType, data }, now);
    const value = eventType === "reward" ? rewardOf(data) : undefined;
    const rows = await writer.transact([
      ...(value === undefined
        ? []
        : rewardShadow(
            { tenantId, id: rolloutId, attemptId },
            { id: newId("reward"), name: textOr(data["source"], "reward"), value },
            now,
          )),
      ...record,
    ]);
    if (rows.at(-1)?.[0] === undefined) throw missing(rolloutId);
    return c.json(eventView(rolloutId, { eventType, attemptId, createdAt: now, data }));
  })
  .get("/:id/events", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "trainer");
    const { event_type: eventType, format } = parseQuery(c.req.url, eventsQuerySchema);
    const rollout = await existingAgl(db(), principal.tenantId, c.req.param("id"));
    const attempt =
      rollout.lastAttemptId === null || rollout.lastAttemptId === "" ? DEFAULT_ATTEMPT : rollout.lastAttemptId;
    const rows = await readAglEvents(db(), rollout.seq, attempt, eventType);
    const calls = await callsOf(db(), rollout, rows);
    const events = rows.map((event) => {
      const call = event.callId === null ? undefined : calls.get(event.callId);
      return eventView(rollout.id, call === undefined ? event : { ...event, data: modelRequest(call, event.data) });
    });
    return c.json(format === "triplet" ? tripletEvents(events) : events);
  });

/** The recorded calls that events tell of, their prompts whole. */
async function callsOf(
  db: StoreDb,
  { tenantId, shadowId }: AglRollout,
  events: readonly AglEvent[],
): Promise<ReadonlyMap<string, Call>> {
  if (events.every(({ callId }) => callId === null)) return new Map();
  return new Map((await readCalls(db, tenantId, [shadowId])).map((call) => [call.id, call]));
}

/** What counts as a reward here; anything is kept as an event. */
function rewardOf(data: Readonly<Record<string, Json>>): number | undefined {
  const value = data["value"];
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

function textOr(value: Json | undefined, otherwise: string): string {
  return typeof value === "string" && value !== "" ? value.slice(0, 128) : otherwise;
}
