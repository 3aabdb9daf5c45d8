import { Hono } from "hono";
import { readCosts, readInvocations, readRolloutCosts, readSpent, type UsageRow } from "#shared/store/metering.ts";
import { readTenantSettings } from "#shared/store/tenants.ts";
import { usageQuerySchema, type UsageReport } from "#shared/wire-metering.ts";
import { requireScope } from "../auth.ts";
import { monthOf } from "../budget.ts";
import type { EdgeHono } from "../context.ts";
import { query } from "./json-body.ts";

/**
 * `/v1/usage`: calls, tokens and cost per day, model and mode, and per policy; agent runs; on demand the newest rollouts one
 * by one.
 */
export const usageRoutes = new Hono<EdgeHono>().get("/", async (c) => {
  const { parts, principal, db } = c.var;
  requireScope(principal, "read");
  const month = monthOf(parts.now());
  const { since = month, rollouts: newest } = query(c.req.url, usageQuerySchema);
  const { tenantId } = principal;
  const [usage, agents, rollouts, settings, spent] = await Promise.all([
    readCosts(db(), tenantId, since),
    readInvocations(db(), tenantId, Date.parse(since)),
    newest === 0 ? [] : readRolloutCosts(db(), tenantId, newest),
    readTenantSettings(db(), tenantId),
    readSpent(db(), tenantId, month),
  ]);
  const monthly = settings?.monthly_budget;
  const report: UsageReport = {
    since,
    usage,
    models: byModel(usage),
    agents,
    rollouts,
    totals: {
      calls: sum(usage, (row) => row.calls),
      prompt_tokens: sum(usage, (row) => row.prompt_tokens),
      completion_tokens: sum(usage, (row) => row.completion_tokens),
      cost: sum(usage, (row) => row.cost ?? 0),
      agent_invocations: sum(agents, (row) => row.invocations),
      wall_ms: sum(agents, (row) => row.wall_ms),
    },
    budget: monthly === undefined ? null : { monthly, spent },
  };
  return c.json(report);
});

/** A policy's versions together; dearest first. What has no price costs null. */
function byModel(usage: readonly UsageRow[]): UsageReport["models"] {
  const models = Map.groupBy(usage, ({ model }) => model.split("@")[0] ?? model);
  return [...models]
    .map(([model, rows]) => ({
      model,
      calls: sum(rows, (row) => row.calls),
      prompt_tokens: sum(rows, (row) => row.prompt_tokens),
      completion_tokens: sum(rows, (row) => row.completion_tokens),
      cost: rows.every((row) => row.cost === null) ? null : sum(rows, (row) => row.cost ?? 0),
    }))
    .toSorted((a, b) => (b.cost ?? 0) - (a.cost ?? 0) || a.model.localeCompare(b.model));
}

function sum<T>(rows: readonly T[], of: (row: T) => number): number {
  return rows.reduce((total, row) => total + of(row), 0);
}
