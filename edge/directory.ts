import { parseModelTarget, type AgentSettingsInput, type ModelTarget } from "#shared/agent-settings.ts";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";
import { listAgents, type StoredAgent } from "#shared/store/agents.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { listProviders, type StoredProvider } from "#shared/store/providers.ts";
import { agentConfig, type AgentConfig, type EdgeConfig } from "./config.ts";
import { RetryLaterError } from "./http-errors.ts";
import { openKey } from "./provider-key.ts";
import { TtlCache } from "./ttl-cache.ts";

/**
 * Which agents and providers a tenant has now, and where an agent's model names lead. What the store says is laid over
 * the agents that the edge was deployed with, remembered, and asked again beside the calls, so that hardly one waits.
 */
export interface Directory {
  /** Throws FulgurError ERR_STORE where the store is away and the tenant has not been looked up yet. */
  of(request: DirectoryRequest): Promise<TenantDirectory>;
  /** Forgets a tenant whose agents or providers have just changed in this isolate. */
  forget(tenantId: string): void;
}

export interface DirectoryRequest {
  readonly tenantId: string;
  readonly db: () => StoreDb;
  readonly now: number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

export type Agents = Readonly<Record<string, AgentConfig>>;

export interface TenantDirectory {
  readonly agents: Agents;
  readonly providers: ReadonlyMap<string, StoredProvider>;
  /**
   * Where a model name of an agent leads, a provider with its key opened.
   * Throws FulgurError ERR_UNKNOWN_POLICY where it leads nowhere, ERR_CONFIG where the provider's key is not to be had.
   */
  readonly route: (agent: string, modelAsked: string) => Promise<RoutedModel>;
}

/** A {@link ModelTarget} with what calling it takes; a policy's version is for proxy/resolve.ts to say. */
export type RoutedModel =
  | { readonly kind: "policy"; readonly policy: string; readonly role: string }
  | {
      readonly kind: "provider";
      readonly provider: { readonly name: string; readonly baseUrl: string; readonly apiKey: string | null };
      readonly model: string;
      readonly role: string;
    };

/** Younger, it is simply used; older, it is asked again beside the call that uses it. */
const FRESH_MS = 1000;
/** Older, the call waits for the answer. */
const USABLE_MS = 5000;
/** Older than that too, it serves while the store is away. */
const KEPT_MS = 600_000;

const log = logger("directory");

export function directory(config: Pick<EdgeConfig, "agentInputs" | "vaultKey" | "providerKeys">): Directory {
  const known = new TtlCache<Known>({ ttlMs: KEPT_MS, maxEntries: 1000 });
  /** Tenants that are being asked about beside a call, since when. */
  const asking = new Map<string, number>();
  /** When looking last failed, by tenant. */
  const lookFailed = new Map<string, number>();
  /** How often each tenant was forgotten. */
  const changes = new Map<string, number>();

  async function read({ tenantId, db, now }: DirectoryRequest): Promise<Known> {
    const change = changes.get(tenantId);
    const [agents, providers] = await Promise.all([listAgents(db(), tenantId), listProviders(db(), tenantId)]);
    const rows = JSON.stringify([agents, providers]);
    const before = known.get(tenantId, now);
    // Parsing settings again every second would cost more than asking for them.
    const tenant = before?.rows === rows ? before.tenant : tenantDirectory(config, agents, providers);
    const read = { tenant, rows, readAt: now };
    // Forgotten meanwhile: what was read may be older than what was changed.
    if (changes.get(tenantId) === change) known.set(tenantId, read, now);
    return read;
  }

  function refresh(request: DirectoryRequest): void {
    const { tenantId, now } = request;
    if (now - (asking.get(tenantId) ?? 0) < USABLE_MS) return;
    asking.set(tenantId, now);
    request.later(
      read(request)
        .catch(() => undefined)
        .finally(() => asking.delete(tenantId)),
    );
  }

  return {
    async of(request) {
      const { tenantId, now } = request;
      const have = known.get(tenantId, now);
      if (have !== undefined && (now - have.readAt < USABLE_MS || now - (lookFailed.get(tenantId) ?? 0) < USABLE_MS)) {
        if (now - have.readAt >= FRESH_MS) refresh(request);
        return have.tenant;
      }
      try {
        return (await read(request)).tenant;
      } catch (cause) {
        // While the store hangs, one call in a while waits for it, and not each.
        lookFailed.set(tenantId, now);
        if (have !== undefined) return have.tenant;
        throw new RetryLaterError("ERR_STORE", "the store is away, so the tenant's agents are not known; try again", {
          cause,
          retryAfterSeconds: 1,
        });
      }
    },
    forget(tenantId) {
      known.delete(tenantId);
      changes.set(tenantId, (changes.get(tenantId) ?? 0) + 1);
    },
  };
}

interface Known {
  readonly tenant: TenantDirectory;
  /** What it was made of. */
  readonly rows: string;
  readonly readAt: number;
}

function tenantDirectory(
  config: Parameters<typeof directory>[0],
  storedAgents: readonly StoredAgent[],
  storedProviders: readonly StoredProvider[],
): TenantDirectory {
  const agents = layAgents(config.agentInputs, storedAgents);
  const providers = new Map(storedProviders.map((provider) => [provider.name, provider]));
  const keys = new Map<string, string | null>();
  return {
    agents,
    providers,
    async route(agent, modelAsked) {
      const { target, role } = mapModel(agents, agent, modelAsked);
      if (target.kind === "policy") return { ...target, role };
      const provider = providers.get(target.provider);
      if (provider === undefined) {
        throw new FulgurError(
          "ERR_UNKNOWN_POLICY",
          `agent ${agent} maps ${modelAsked} to provider ${target.provider}, which does not exist; npx fulgur providers add ${target.provider} makes it`,
        );
      }
      let apiKey = keys.get(provider.name);
      if (apiKey === undefined) keys.set(provider.name, (apiKey = await openKey(config, provider)));
      return {
        kind: "provider",
        provider: { name: provider.name, baseUrl: provider.baseUrl, apiKey },
        model: target.model,
        role,
      };
    },
  };
}

/**
 * The stored agents laid over the deployed ones, field by field; model names are mapped one by one. Settings that do not
 * fit together any more (a deploy changed what they were laid over) leave their agent out, with a line in the log.
 */
export function layAgents(
  deployed: Readonly<Record<string, AgentSettingsInput>>,
  stored: readonly Pick<StoredAgent, "name" | "settings">[],
): Agents {
  const inputs = new Map(Object.entries(deployed));
  for (const { name, settings } of stored) inputs.set(name, layOver(inputs.get(name), settings));
  return Object.fromEntries(
    [...inputs].flatMap(([name, input]): [string, AgentConfig][] => {
      try {
        return [[name, agentConfig(input)]];
      } catch (thrown) {
        log.error("agent.unusable", { agent: name, error: messageOf(thrown) });
        return [];
      }
    }),
  );
}

/** One agent's settings laid over others. */
export function layOver(under: AgentSettingsInput | undefined, over: AgentSettingsInput): AgentSettingsInput {
  const { policy: _under, models: modelsUnder, binding, url, ...rest } = withModels(under ?? {});
  const { policy: _over, models: modelsOver, ...top } = withModels(over);
  // It runs in one place: a new one takes the place of the old.
  const place =
    top.binding !== undefined || top.url !== undefined
      ? {}
      : { ...(binding === undefined ? {} : { binding }), ...(url === undefined ? {} : { url }) };
  return { ...rest, ...place, ...top, models: { ...modelsUnder, ...modelsOver } };
}

/** `policy` written out as where `*` leads. */
function withModels(settings: AgentSettingsInput): AgentSettingsInput {
  const { policy, models = {} } = settings;
  if (policy === undefined || Object.hasOwn(models, "*")) return { ...settings, models };
  return { ...settings, models: { ...models, "*": `policy:${policy}` } };
}

export interface MappedModel {
  readonly target: ModelTarget;
  /** The mapped model name; `main` where `*` mapped it. */
  readonly role: string;
}

/**
 * Where a model name of an agent leads.
 * @throws FulgurError ERR_UNKNOWN_POLICY where the agent or the mapping does not exist
 */
export function mapModel(agents: Agents, agent: string, modelAsked: string): MappedModel {
  const config = Object.hasOwn(agents, agent) ? agents[agent] : undefined;
  if (config === undefined) {
    throw new FulgurError(
      "ERR_UNKNOWN_POLICY",
      `there is no agent ${agent} here; npx fulgur agents map ${agent} '*=policy:NAME' makes it`,
    );
  }
  const { models } = config;
  const exact = Object.hasOwn(models, modelAsked) ? models[modelAsked] : undefined;
  if (exact !== undefined && modelAsked !== "*") return { target: parseModelTarget(exact), role: modelAsked };
  const rest = Object.hasOwn(models, "*") ? models["*"] : undefined;
  if (rest !== undefined) return { target: parseModelTarget(rest), role: "main" };
  throw new FulgurError(
    "ERR_UNKNOWN_POLICY",
    `agent ${agent} does not map the model ${modelAsked}; it maps ${Object.keys(models).join(", ") || "none"}; npx fulgur agents map ${agent} '${modelAsked}=policy:NAME' adds it`,
  );
}
