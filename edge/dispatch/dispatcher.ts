import { DurableObject } from "cloudflare:workers";
import { FulgurError, messageOf } from "#shared/errors.ts";
import { logger } from "#shared/log.ts";
import { listAllAgents } from "#shared/store/agents.ts";
import { connectStore } from "#shared/store/connect.ts";
import { mintToken, type RolloutClaims } from "#shared/tokens.ts";
import { edgeConfig, serviceOf, writerOf, type AgentConfig, type DispatcherRpc, type Env } from "../config.ts";
import { counters } from "../counters.ts";
import { directory, layAgents, type Agents } from "../directory.ts";
import { outboundUrl } from "../outbound-url.ts";
import { admission } from "../proxy/admission.ts";
import { promptMemory } from "../proxy/prompt-memory.ts";
import { providerMemory } from "../proxy/provider/memory.ts";
import { resolver } from "../proxy/resolve.ts";
import { inferenceServers } from "../proxy/servers.ts";
import { evaluatorDeps } from "../record/evaluators/wiring.ts";
import { storeWriter } from "../record/writer-client.ts";
import { shardOfObject } from "../shards.ts";
import { agentAt, askAgent, type AgentService } from "./invoke.ts";
import { Pump } from "./pump.ts";

/** What an agent's attempt may ask of its model; generous, because a runaway agent meets its time-out first. */
const ATTEMPT_CAPS: RolloutClaims["caps"] = { maxCalls: 64, maxTokens: 200_000 };
/** A token outlives its attempt by this, for the calls that are under way when time runs out. */
const TOKEN_MARGIN_SECONDS = 30;
const MAX_TOKEN_SECONDS = 900;

const log = logger("dispatch");

/**
 * The one dispatcher of a shard: a Durable Object around the {@link Pump}.
 *
 * Its work goes on after the call that woke it has been answered. Production evicts an object that has been idle for a
 * while, and does not count what it waits for; so while attempts run an alarm is always set, whose handler is also the
 * heartbeat of their leases. An object that is lost all the same loses nothing: the next one queues its attempts again.
 */
export class Dispatcher extends DurableObject<Env> implements DispatcherRpc {
  readonly #pump: Pump;
  /** When the alarm is set for; undefined where it is not known to be set. */
  #alarmAt: number | undefined;

  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env);
    const config = edgeConfig(env);
    const shard = shardOfObject(env.DISPATCHER, ctx.id, { kind: "dispatcher", shards: config.shards });
    const deployed = layAgents(config.agentInputs, []);
    let stored: ReadonlyMap<string, Agents> = new Map();
    const agentsOf = (tenantId: string): Agents => stored.get(tenantId) ?? deployed;
    const connect = () => connectStore({ url: shard.url, token: shard.token });
    this.#pump = new Pump({
      // A stub is not kept: one whose object was reset stays broken.
      writer: {
        transact: (statements) => storeWriter(writerOf(env, shard.index)).transact(statements),
        status: () => storeWriter(writerOf(env, shard.index)).status(),
      },
      connect,
      agents: {
        of: agentsOf,
        async refresh(db) {
          const byTenant = Map.groupBy(await listAllAgents(db), ({ tenantId }) => tenantId);
          stored = new Map([...byTenant].map(([tenantId, rows]) => [tenantId, layAgents(config.agentInputs, rows)]));
        },
      },
      evaluators: evaluatorDeps(env, {
        config,
        shard,
        directory: directory(config),
        admission: admission(),
        resolver: resolver(),
        prompts: promptMemory(),
        counters: counters(),
        servers: inferenceServers(config.inferenceUrls),
        providerMemory: providerMemory(),
        now: Date.now,
        later: (work) => ctx.waitUntil(work),
      }),
      now: Date.now,
      random: Math.random,
      callAt: (time) => this.#setAlarm(time),
      invoke: async (rollout, input, signal) => {
        const agents = agentsOf(rollout.tenantId);
        const agent = Object.hasOwn(agents, rollout.agent) ? agents[rollout.agent] : undefined;
        if (agent === undefined) {
          return { type: "broken", error: `the edge knows no agent ${rollout.agent}`, reason: "agent_failed" };
        }
        const service = serviceFor(agent, rollout.agent, env);
        const lifeSeconds = Math.ceil(agent.timeoutMs / 1000) + TOKEN_MARGIN_SECONDS;
        const { token } = await mintToken(config.signingKeys, {
          tenantId: rollout.tenantId,
          scopes: ["call"],
          ttlSeconds: Math.min(lifeSeconds, MAX_TOKEN_SECONDS),
          rollout: {
            rolloutId: rollout.id,
            attempt: rollout.attempt,
            agent: rollout.agent,
            mode: rollout.mode,
            pin: rollout.pin,
            caps: ATTEMPT_CAPS,
          },
        });
        const request = { input, token, llmBaseUrl: `${config.publicUrl}/v1` };
        return askAgent(service, request, signal);
      },
    });
  }

  /** Rollouts may have been queued, or cancelled. Answers at once; waking twice is waking once. */
  async wake(): Promise<void> {
    this.ctx.waitUntil(this.#pump.wake());
  }

  override async alarm(): Promise<void> {
    this.#alarmAt = undefined;
    await this.#pump.tick();
  }

  #setAlarm(time: number): void {
    if (this.#alarmAt !== undefined && this.#alarmAt <= time) return;
    this.#alarmAt = time;
    this.ctx.storage.setAlarm(time).catch((thrown: unknown) => {
      this.#alarmAt = undefined;
      log.error("alarm.failed", { error: messageOf(thrown) });
    });
  }
}

/**
 * Where an agent runs: behind a service binding, or at its address.
 * @throws FulgurError ERR_CONFIG where it has neither or the binding is not there, ERR_INVALID_REQUEST where the edge may
 *   not call its address
 */
function serviceFor({ binding, url }: AgentConfig, name: string, env: Env): AgentService {
  if (binding !== undefined) return serviceOf(env, binding);
  if (url !== undefined) {
    // Looked at again: settings that were stored while the edge was local may outlive that.
    outboundUrl(url, { what: `the url of agent ${name}`, ...edgeConfig(env).outbound, query: true });
    return agentAt(url);
  }
  throw new FulgurError(
    "ERR_CONFIG",
    `agent ${name} starts by itself: it has neither a binding nor a url to be run at (PUT /v1/agents/${name})`,
  );
}
