import { Hono } from "hono";
import { FulgurError } from "#shared/errors.ts";
import { newId } from "#shared/ids.ts";
import {
  AGL_TRANSITIONS,
  changeAglStatus,
  deleteAglRollout,
  enqueueAglRollouts,
  listAglAttempts,
  listAglRollouts,
  listEndedAglRollouts,
  readAglRollout,
  readAglRollouts,
  type AglRollout,
  type AglStatusChange,
  type NewAglRollout,
} from "#shared/store/agl-rollouts.ts";
import { auditedIfChanged } from "#shared/store/audit.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { transact } from "#shared/store/statement.ts";
import { requireScope } from "../../auth.ts";
import type { EdgeHono } from "../../context.ts";
import { parseBody, parseQuery } from "./parse.ts";
import {
  dataIdOf,
  endedQuerySchema,
  listQuerySchema,
  newRolloutsSchema,
  patchSchema,
  rolloutView,
  statusIdsSchema,
  statusView,
  wholeConfig,
  wholeMetadata,
} from "./wire.ts";

/** What one answer may hold. */
const MAX_LISTED = 2000;
const MAX_ENDED = 10_000;
/** Of the rollouts that are written in one transaction. */
const UNIT_BYTES = 4 * 1_048_576;

/** `/api/rollouts`: made and read by the trainer, moved on by the controller. */
export const aglRolloutRoutes = new Hono<EdgeHono>()
  .use(async (c, next) => {
    requireScope(c.var.principal, "trainer");
    await next();
  })
  .post("/", async (c) => {
    const { parts, principal, writer } = c.var;
    const { tenantId } = principal;
    const given = await parseBody(c.req.raw, newRolloutsSchema);
    const now = parts.now();
    const rows = given.map(({ rollout_id: id, is_train: isTrain, input, config, metadata }): NewAglRollout => ({
      // An empty id counts as none.
      id: id === null || id === "" ? crypto.randomUUID().replaceAll("-", "") : id,
      shadowId: newId("rollout"),
      input,
      isTrain,
      config: wholeConfig(config),
      metadata: wholeMetadata(metadata),
      dataId: dataIdOf(input),
    }));
    const kept = new Map<string, AglRollout>();
    for (const unit of units(rows)) {
      for (const rollout of await transact(writer, enqueueAglRollouts(tenantId, unit, now)))
        kept.set(rollout.id, rollout);
    }
    return c.json(
      rows.flatMap(({ id }) => {
        const rollout = kept.get(id);
        return rollout === undefined ? [] : [rolloutView(rollout)];
      }),
      201,
    );
  })
  .get("/", async (c) => {
    const { principal, db } = c.var;
    const { state_in: states, limit } = parseQuery(c.req.url, listQuerySchema, ["state_in"]);
    const rows = await listAglRollouts(db(), principal.tenantId, { states, limit: Math.min(limit, MAX_LISTED) });
    return c.json(rows.map(rolloutView));
  })
  .get("/terminal", async (c) => {
    const { principal, db } = c.var;
    const { after, limit } = parseQuery(c.req.url, endedQuerySchema);
    const page = await listEndedAglRollouts(db(), principal.tenantId, {
      after: Math.max(0, after),
      limit: Math.min(Math.max(1, limit), MAX_ENDED),
    });
    const items = page.items.map(({ id, state, dataId, isTrain }) => ({
      rollout_id: id,
      state,
      data_id: dataId,
      is_train: isTrain,
    }));
    return c.json({ items, next_after: page.nextAfter, total_terminal: page.total });
  })
  .post("/status", async (c) => {
    const { principal, db } = c.var;
    const ids = await parseBody(c.req.raw, statusIdsSchema);
    const found = new Map((await readAglRollouts(db(), principal.tenantId, ids)).map((row) => [row.id, row]));
    return c.json(
      Object.fromEntries(
        ids.map((id) => {
          const rollout = found.get(id);
          if (rollout === undefined) throw missing(id);
          return [id, statusView(rollout)];
        }),
      ),
    );
  })
  .get("/:id", async (c) => {
    const { principal, db } = c.var;
    const rollout = await existingAgl(db(), principal.tenantId, c.req.param("id"));
    return c.json({ rollout: rolloutView(rollout), attempts: await listAglAttempts(db(), rollout) });
  })
  .patch("/:id", async (c) => {
    const { parts, principal, db, writer } = c.var;
    const { tenantId } = principal;
    const id = c.req.param("id");
    const { status } = await parseBody(c.req.raw, patchSchema);
    const { state, ...rest } = status ?? {};
    // Asked before the state is looked at: an unknown rollout is missing, whatever is wanted of it.
    if (state === null) throw illegal(await existingAgl(db(), tenantId, id), "null");
    const change: AglStatusChange = {
      ...(state === undefined ? {} : { state }),
      ...(rest.k8s_job_name === undefined ? {} : { k8sJobName: rest.k8s_job_name }),
      ...(rest.last_attempt_id === undefined ? {} : { lastAttemptId: rest.last_attempt_id }),
      ...(rest.error_message === undefined ? {} : { errorMessage: rest.error_message }),
    };
    if (Object.keys(change).length === 0) return c.json(rolloutView(await existingAgl(db(), tenantId, id)));
    const changed = await transact(writer, changeAglStatus(tenantId, id, change, parts.now()));
    if (changed.status === "missing") throw missing(id);
    if (changed.status === "refused") throw illegal(changed.rollout, state ?? "");
    parts.admission.forget(changed.rollout.shadowId);
    return c.json(rolloutView(changed.rollout));
  })
  .delete("/:id", async (c) => {
    const { parts, principal, writer } = c.var;
    const id = c.req.param("id");
    const now = parts.now();
    await writer.append([
      [
        ...deleteAglRollout(principal.tenantId, id, now),
        auditedIfChanged({ by: principal, action: "rollout.deleted", target: id, now }),
      ],
    ]);
    return c.body(null, 204);
  });

/** @throws FulgurError ERR_NOT_FOUND */
export async function existingAgl(db: StoreDb, tenantId: string, id: string): Promise<AglRollout> {
  const rollout = await readAglRollout(db, tenantId, id);
  if (rollout === undefined) throw missing(id);
  return rollout;
}

export function missing(id: string): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no rollout ${id}; POST /api/rollouts creates one`);
}

function illegal({ id, state }: AglRollout, wanted: string): FulgurError {
  const next = AGL_TRANSITIONS[state];
  return new FulgurError(
    "ERR_CONFLICT",
    `rollout ${id} is ${state} and cannot become ${wanted}: ${next.length === 0 ? "it has ended" : `only ${next.join(" or ")} may follow`}`,
  );
}

/** In order, as many to a unit as one transaction should carry. */
function units(rows: readonly NewAglRollout[]): NewAglRollout[][] {
  const all: NewAglRollout[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const row of rows) {
    const size = JSON.stringify([row.input, row.config, row.metadata]).length;
    if (bytes + size > UNIT_BYTES) {
      all.push([]);
      bytes = 0;
    }
    all.at(-1)?.push(row);
    bytes += size;
  }
  return all;
}
