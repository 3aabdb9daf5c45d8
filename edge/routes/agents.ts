import { Hono, type Context } from "hono";
import { agentNameSchema, parseModelTarget, type AgentSettingsInput } from "#shared/agent-settings.ts";
import { FulgurError } from "#shared/errors.ts";
import { deleteAgent, listAgents, mapModels, putAgent, type StoredAgent } from "#shared/store/agents.ts";
import { audited, auditedIfChanged } from "#shared/store/audit.ts";
import { agentInputSchema, agentModelsSchema } from "#shared/wire-access.ts";
import { requireScope } from "../auth.ts";
import { agentConfig } from "../config.ts";
import { tenantDirectory, type EdgeHono } from "../context.ts";
import { layOver } from "../directory.ts";
import { outboundUrl } from "../outbound-url.ts";
import { checkAgentSettings } from "../record/agent-check.ts";
import { checked, jsonBody } from "./json-body.ts";

/** `/v1/agents`: what is stored of agents, laid over what the edge was deployed with. */
export const agentRoutes = new Hono<EdgeHono>()
  .get("/", async (c) => {
    requireScope(c.var.principal, "read");
    const stored = new Map((await storedAgents(c)).map((agent) => [agent.name, agent]));
    const names = new Set([...Object.keys(c.var.parts.config.agentInputs), ...stored.keys()]);
    return c.json({ agents: [...names].sort().map((name) => agentView(c, name, stored.get(name))) });
  })
  .get("/:name", async (c) => {
    requireScope(c.var.principal, "read");
    const name = c.req.param("name");
    const stored = (await storedAgents(c)).find((agent) => agent.name === name);
    if (stored === undefined && deployed(c, name) === undefined) throw missing(name);
    return c.json(agentView(c, name, stored));
  })
  .put("/:name", async (c) => {
    requireScope(c.var.principal, "admin");
    const name = agentName(c);
    const settings = await jsonBody(c.req.raw, agentInputSchema);
    await requireUsable(c, name, layOver(deployed(c, name), settings));
    const { parts, principal, writer } = c.var;
    const now = parts.now();
    const agent = { tenantId: principal.tenantId, name, settings, updatedAt: now };
    await writer.transact([
      ...putAgent(agent),
      audited({ by: principal, action: "agent.put", target: name, detail: { fields: Object.keys(settings) }, now }),
    ]);
    parts.directory.forget(principal.tenantId);
    return c.json(agentView(c, name, agent));
  })
  .post("/:name/models", async (c) => {
    requireScope(c.var.principal, "admin");
    const name = agentName(c);
    const { models } = await jsonBody(c.req.raw, agentModelsSchema);
    const before = (await storedAgents(c)).find((agent) => agent.name === name);
    const settings = layOver(before?.settings, { models });
    await requireUsable(c, name, layOver(deployed(c, name), settings));
    const { parts, principal, writer } = c.var;
    const now = parts.now();
    await writer.transact([
      ...mapModels({ tenantId: principal.tenantId, name, updatedAt: now }, models),
      audited({ by: principal, action: "agent.put", target: name, detail: { models }, now }),
    ]);
    parts.directory.forget(principal.tenantId);
    return c.json(agentView(c, name, { tenantId: principal.tenantId, name, settings, updatedAt: now }));
  })
  .delete("/:name", async (c) => {
    requireScope(c.var.principal, "admin");
    const { parts, principal, writer } = c.var;
    const name = c.req.param("name");
    const now = parts.now();
    const [deleted = []] = await writer.transact([
      deleteAgent(principal.tenantId, name),
      auditedIfChanged({ by: principal, action: "agent.deleted", target: name, now }),
    ]);
    parts.directory.forget(principal.tenantId);
    if (deleted.length === 0) {
      if (deployed(c, name) === undefined) throw missing(name);
      throw new FulgurError(
        "ERR_CONFLICT",
        `agent ${name} was deployed with the edge and nothing is stored over it; take it out of the edge's AGENTS`,
      );
    }
    return c.json({ ok: true });
  });

function storedAgents(c: Context<EdgeHono>): Promise<StoredAgent[]> {
  return listAgents(c.var.db(), c.var.principal.tenantId);
}

function deployed(c: Context<EdgeHono>, name: string): AgentSettingsInput | undefined {
  const { agentInputs } = c.var.parts.config;
  return Object.hasOwn(agentInputs, name) ? agentInputs[name] : undefined;
}

function agentName(c: Context<EdgeHono>): string {
  return checked(agentNameSchema, c.req.param("name"), "the agent's name");
}

/**
 * What a schema alone cannot see: the layers fit together, rules and evaluator can be applied, addresses are ones that the
 * edge may call, providers exist.
 * @throws FulgurError ERR_INVALID_REQUEST, ERR_NOT_FOUND
 */
async function requireUsable(c: Context<EdgeHono>, name: string, input: AgentSettingsInput): Promise<void> {
  checked(agentInputSchema, input, `agent ${name}`);
  const settings = agentConfig(input);
  checkAgentSettings(settings);
  const { url, evaluator, models } = settings;
  const { outbound } = c.var.parts.config;
  if (url !== undefined) outboundUrl(url, { what: `the url of agent ${name}`, ...outbound, query: true });
  if (evaluator?.type === "worker" && evaluator.url !== undefined) {
    outboundUrl(evaluator.url, { what: `the url of agent ${name}'s evaluator`, ...outbound, query: true });
  }
  const judge = evaluator?.type === "llm_judge" ? [evaluator.model] : [];
  // Another isolate may have added a provider a moment ago.
  c.var.parts.directory.forget(c.var.principal.tenantId);
  const { providers } = await tenantDirectory(c);
  for (const text of [...Object.values(models), ...judge]) {
    const target = parseModelTarget(text);
    if (target.kind === "policy" || providers.has(target.provider)) continue;
    throw new FulgurError(
      "ERR_NOT_FOUND",
      `there is no provider ${target.provider} for agent ${name} to use; npx fulgur providers add ${target.provider} makes it`,
    );
  }
}

function agentView(c: Context<EdgeHono>, name: string, stored: StoredAgent | undefined): Record<string, unknown> {
  const under = deployed(c, name);
  const source = stored === undefined ? "deployed" : under === undefined ? "stored" : "both";
  return { name, source, settings: layOver(under, stored?.settings ?? {}), updated_at: stored?.updatedAt ?? null };
}

function missing(name: string): FulgurError {
  return new FulgurError("ERR_NOT_FOUND", `there is no agent ${name}; GET /v1/agents lists those there are`);
}
