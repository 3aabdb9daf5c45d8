import { Hono } from "hono";
import { z } from "zod";
import { FulgurError } from "#shared/errors.ts";
import { readBatchOfRollout } from "#shared/store/batches.ts";
import { readCalls } from "#shared/store/calls.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readVersion, retiredMessage } from "#shared/store/policies.ts";
import { readRewards, recordReward } from "#shared/store/rewards.ts";
import {
  cancelRollout,
  createRollouts,
  dropRollouts,
  listRollouts,
  readAttempts,
  readRollout,
  type Rollout,
} from "#shared/store/rollouts.ts";
import { transact } from "#shared/store/statement.ts";
import { existingTaskIds } from "#shared/store/tasks.ts";
import { dropBodySchema, finishBodySchema, rolloutsBodySchema } from "#shared/wire.ts";
import { toolResultInputSchema } from "#shared/wire-feedback.ts";
import { MODES, parseVersionName, ROLLOUT_STATUSES, versionName } from "#shared/words.ts";
import { requireOwnerOrScope, requireScope } from "../auth.ts";
import { tenantDirectory, type EdgeHono, type EdgeParts } from "../context.ts";
import { airReward, judgeTool } from "../record/air.ts";
import { evaluatorDeps } from "../record/evaluators/wiring.ts";
import { finishRollout } from "../record/finish.ts";
import { ownOf } from "../record/reward.ts";
import { jsonBody, query } from "./json-body.ts";
import { requireKeyAgent, requireOwnerOrAgent } from "./speaker.ts";
import { rolloutDetailView, rolloutView } from "./views.ts";

const listQuerySchema = z.strictObject({
  limit: z.coerce.number().int().min(1).max(500).default(50),
  after: z.string().max(128).optional(),
  mode: z.enum(MODES).optional(),
  /** One, or several with commas between. */
  status: z
    .string()
    .transform((names) => names.split(","))
    .pipe(z.array(z.enum(ROLLOUT_STATUSES)))
    .optional(),
  run_id: z.string().max(128).optional(),
});

/** `/v1/rollouts`: created, listed, read, finished, cancelled, dropped, and told what became of their tool calls. */
export const rolloutRoutes = new Hono<EdgeHono>()
  .post("/", async (c) => {
    const { parts, principal, db, writer } = c.var;
    requireScope(principal, "trainer");
    const { rollouts } = await jsonBody(c.req.raw, rolloutsBodySchema);
    const { tenantId } = principal;
    const { agents } = await tenantDirectory(c);
    for (const { agent } of rollouts) requireAgent(agents, agent);
    const known = await existingTaskIds(db(), tenantId, [...new Set(rollouts.map(({ taskId }) => taskId))]);
    const stray = rollouts.find(({ taskId }) => !known.has(taskId));
    if (stray !== undefined) {
      throw new FulgurError("ERR_NOT_FOUND", `there is no task ${stray.taskId}; POST /v1/tasks creates it`);
    }
    await requirePinnable(
      db(),
      tenantId,
      rollouts.map(({ pin }) => pin),
    );
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
    const { run_id: runId, status: statuses, limit, ...rest } = query(c.req.url, listQuerySchema);
    const rows = await listRollouts(db(), principal.tenantId, { ...rest, limit, statuses, runId });
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
    for (const id of ids) ended(parts, id);
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
    const { agents } = await tenantDirectory(c);
    const evaluators = evaluatorDeps(c.env, { ...parts, later: (work) => c.executionCtx.waitUntil(work) });
    const deps = { db: db(), writer, agents, evaluators, now: parts.now, random: Math.random };
    const own = principal.rollout?.rolloutId === id ? principal.rollout.attempt : undefined;
    const finished = await finishRollout(deps, { tenantId: principal.tenantId, rolloutId: id, attempt: own, ...body });
    ended(parts, id);
    if (finished.status === "queued") await parts.wakeDispatch(c.env, [id]);
    return c.json(rolloutView(finished));
  })
  .post("/:id/tool-results", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const id = c.req.param("id");
    requireOwnerOrAgent(principal, id);
    const { toolCallId, tool, result, succeeded: told } = await jsonBody(c.req.raw, toolResultInputSchema);
    if ((result === undefined) === (told === undefined)) {
      throw new FulgurError("ERR_INVALID_REQUEST", "a tool result wants either result or succeeded");
    }
    const { tenantId } = principal;
    const rollout = await existing(db(), tenantId, id);
    requireKeyAgent(principal, rollout.agent);
    const settings = ownOf((await tenantDirectory(c)).agents, rollout.agent) ?? { tools: {} };
    const succeeded = told ?? judgeTool(settings, tool, result ?? "");
    if (succeeded === undefined) {
      throw new FulgurError("ERR_INVALID_REQUEST", `the success rules of tool ${tool} cannot be applied; correct them`);
    }
    const attempt = principal.rollout?.rolloutId === id ? principal.rollout.attempt : rollout.attempt;
    const options = { ...settings, tenantId, rolloutId: id, attempt, now: parts.now() };
    const reward = airReward({ toolCallId, tool, succeeded }, options, "event");
    if (reward === undefined) return c.json({ reward_id: null, created: false, succeeded });
    const rewardId = await transact(writer, recordReward(reward));
    return c.json({ reward_id: rewardId, created: rewardId === reward.id, succeeded });
  })
  .post("/:id/cancel", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const id = c.req.param("id");
    requireOwnerOrScope(principal, id, "trainer");
    await writer.transact(cancelRollout(principal.tenantId, id, parts.now()));
    ended(parts, id);
    return c.json(rolloutView(await existing(db(), principal.tenantId, id)));
  });

/** This isolate's caches are told; another's notice within seconds. */
function ended({ admission, sessions }: EdgeParts, rolloutId: string): void {
  admission.forget(rolloutId);
  sessions.forget(rolloutId);
}

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
    `there is no agent ${agent}; there are ${Object.keys(agents).join(", ") || "none"} (npx fulgur agents map ${agent} '*=policy:NAME' makes it)`,
  );
}

/**
 * That a retired version is not pinned: its calls would all be refused. One that is retired right afterwards is refused then.
 * @throws FulgurError ERR_CONFLICT naming it
 */
export async function requirePinnable(db: StoreDb, tenantId: string, pins: readonly (string | null)[]): Promise<void> {
  for (const pin of new Set(pins)) {
    const named = pin === null ? undefined : parseVersionName(pin);
    if (named === undefined) continue;
    const version = await readVersion(db, tenantId, named.policy, named.version);
    if (version !== undefined && version.retiredAt !== null) {
      throw new FulgurError("ERR_CONFLICT", retiredMessage(versionName(named.policy, named.version)));
    }
  }
}

function missing(id: string): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no rollout ${id}; GET /v1/rollouts lists those there are`);
}
