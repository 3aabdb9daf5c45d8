import { Hono } from "hono";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { readBatchOfRollout } from "#shared/store/batches.ts";
import { readCalls } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readRewards } from "#shared/store/rewards.ts";
import {
  cancelRollout,
  createRollouts,
  dropRollouts,
  listRollouts,
  readAttempts,
  readRollout,
  type Rollout,
} from "#shared/store/rollouts.ts";
import { existingTaskIds } from "#shared/store/tasks.ts";
import { dropBodySchema, finishBodySchema, rolloutsBodySchema } from "#shared/wire.ts";
import { MODES, ROLLOUT_STATUSES } from "#shared/words.ts";
import { requireOwnerOrScope, requireScope } from "../auth.ts";
import type { EdgeHono } from "../context.ts";
import { finishRollout } from "../record/finish.ts";
import { jsonBody, query } from "./json-body.ts";
import { rolloutDetailView, rolloutView } from "./views.ts";

const listQuerySchema = z.strictObject({
  limit: z.coerce.number().int().min(1).max(500).default(50),
  after: z.string().max(128).optional(),
  mode: z.enum(MODES).optional(),
  status: z.enum(ROLLOUT_STATUSES).optional(),
  run_id: z.string().max(128).optional(),
});

/** `/v1/rollouts`: created, listed, read, finished, cancelled, dropped. */
export const rolloutRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, db, writer } = c.var;
    requireScope(principal, "trainer");
    const { rollouts } = await jsonBody(c.req.raw, rolloutsBodySchema);
    const { tenantId } = principal;
    for (const { agent } of rollouts) requireAgent(parts.config.agents, agent);
    const known = await existingTaskIds(db(), tenantId, [...new Set(rollouts.map(({ taskId }) => taskId))]);
    const stray = rollouts.find(({ taskId }) => !known.has(taskId));
    if (stray !== undefined) {
      throw new FulgurError("ERR_NOT_FOUND", `there is no task ${stray.taskId}; POST /v1/tasks creates it`);
    }
    await writer.transact(
      createRollouts(
        rollouts.map((rollout) => ({ ...rollout, tenantId })),
        parts.now(),
      ),
    );
    const ids = rollouts.map(({ id }) => id);
    await parts.wakeDispatch(c.env, ids);
    return c.json({ ids });
  })
  .get("/", async (c) => {
    const { principal, db } = c.var;
    requireScope(principal, "read");
    const { run_id: runId, limit, ...rest } = query(c.req.url, listQuerySchema);
    const rows = await listRollouts(db(), principal.tenantId, { ...rest, limit, runId });
    return c.json({
      rollouts: rows.map(rolloutView),
      next_after: rows.length === limit ? (rows.at(-1)?.id ?? null) : null,
    });
  })
  .post("/drop", async (c) => {
    const { parts, principal, writer } = c.var;
    requireScope(principal, "trainer");
    const { ids, reason } = await jsonBody(c.req.raw, dropBodySchema);
    const rows = await writer.transact(dropRollouts(principal.tenantId, ids, { reason, now: parts.now() }));
    for (const id of ids) parts.admission.forget(id);
    return c.json({ dropped: rows.at(-1)?.length ?? 0 });
  })
  .get("/:id", async (c) => {
    const { principal, db } = c.var;
    const id = c.req.param("id");
    requireOwnerOrScope(principal, id, "read");
    const { tenantId } = principal;
    const [rollout, attempts, calls, rewards, batch] = await Promise.all([
      readRollout(db(), tenantId, id),
      readAttempts(db(), tenantId, [id]),
      readCalls(db(), tenantId, [id]),
      readRewards(db(), tenantId, [id]),
      readBatchOfRollout(db(), tenantId, id),
    ]);
    if (rollout === undefined) throw missing(id);
    return c.json(rolloutDetailView({ rollout, attempts, calls, rewards, batch }));
  })
  .post("/:id/finish", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const id = c.req.param("id");
    requireOwnerOrScope(principal, id, "trainer");
    const body = await jsonBody(c.req.raw, finishBodySchema);
    const deps = { db: db(), writer, agents: parts.config.agents, now: parts.now, random: Math.random };
    const own = principal.rollout?.rolloutId === id ? principal.rollout.attempt : undefined;
    const finished = await finishRollout(deps, { tenantId: principal.tenantId, rolloutId: id, attempt: own, ...body });
    parts.admission.forget(id);
    if (finished.status === "queued") await parts.wakeDispatch(c.env, [id]);
    return c.json(rolloutView(finished));
  })
  .post("/:id/cancel", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const id = c.req.param("id");
    requireOwnerOrScope(principal, id, "trainer");
    await writer.transact(cancelRollout(principal.tenantId, id, parts.now()));
    parts.admission.forget(id);
    return c.json(rolloutView(await existing(db(), principal.tenantId, id)));
  });

/** @throws FulgurError ERR_NOT_FOUND */
export async function existing(db: StoreDb, tenantId: string, id: string): Promise<Rollout> {
  const rollout = await readRollout(db, tenantId, id);
  if (rollout === undefined) throw missing(id);
  return rollout;
}

/** @throws FulgurError ERR_INVALID_REQUEST naming the agents there are */
export function requireAgent(agents: Readonly<Record<string, unknown>>, agent: string): void {
  if (Object.hasOwn(agents, agent)) return;
  throw new FulgurError(
    "ERR_INVALID_REQUEST",
    `there is no agent ${agent}; the edge's AGENTS has ${Object.keys(agents).join(", ") || "none"}`,
  );
}

function missing(id: string): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no rollout ${id}; GET /v1/rollouts lists those there are`);
}
